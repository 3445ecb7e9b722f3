"""From a table's events, or from its rows in a refresh, to one Iceberg commit. Blocking: for the updater's thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import structlog

from components.iceberg_updater.event_folding import TableEvents, fold
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    BadFile,
    ForeignCommit,
    IcebergTables,
    Retention,
    SnapshotChange,
    Stamp,
    TableCommit,
    TableProblem,
    TableUnavailable,
    files_by_path,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.commits import FilesMissing
from components.lib.lake.iceberg.stamp import SCHEMA_VERSION, STOPPED
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.json_text import parse_json
from registry.models import LakeTable, TableFile, TableMetadata

log = structlog.get_logger(__name__)

COMPARE = "to be compared with the registry"
"""The reason of a table that needs nobody's help any more, only a refresh: adopt and revert leave it."""

_PASSED_ON = ("history.expire.", "write.", "read.", "commit.", "comment")
"""Of a table's properties in the registry, those that are Iceberg's business."""


class TableWork(msgspec.Struct):
    """A table and its schema versions, as the registry has them: those that its files have, and the newest."""

    table: LakeTable
    metadata: dict[int, TableMetadata]

    @property
    def name(self) -> str:
        return f"{self.table.database}.{self.table.name}"

    @property
    def newest(self) -> TableMetadata:
        return self.metadata[max(self.metadata)]


class Committed(msgspec.Struct):
    """What came of it, for the log and for the cleaner."""

    snapshots: int = 0
    files: int = 0
    unreferenced: list[str] = []


class NeedsComparison(Exception):
    """The table has to be compared with the registry: what its events say is not enough."""


class Committer:
    def __init__(self, tables: IcebergTables, retention: Retention) -> None:
        self.tables = tables
        self._retention = retention
        self._schemas: dict[int, dict[int, tuple[TableMetadata, TableSchema]]] = {}

    def commit(self, work: TableWork, events: TableEvents) -> Committed | None:
        """Everything that the table's stamp does not cover. None if there is nothing of it.

        NeedsComparison if the table has to be compared with the registry. TableProblem or SchemaProblem: it is stopped.
        TableUnavailable: this table not now; any other CatalogUnavailable: none of them now.
        """
        try:
            return self._commit(work, events)
        except (TableProblem, SchemaProblem) as problem:
            self.stop(work, str(problem))
            raise
        except FilesMissing as error:
            raise NeedsComparison(f"{error}: comparing with the registry") from error

    def _commit(self, work: TableWork, events: TableEvents) -> Committed | None:
        schemas = self.schemas(work)
        newest = schemas[max(schemas)]
        if not events.creates and not self.tables.has(work.table):
            raise NeedsComparison(f"{work.name} has no Iceberg table: creating it from the registry")
        table = self.tables.ensure(work.table, newest, new=events.creates)
        if STOPPED in table.metadata.properties:
            self.tables.load(work.table)  # somebody may have helped it since
        stopped: list[str] = []

        def build(draft: TableCommit) -> None:
            properties = draft.table.metadata.properties
            pending = [part for part in events.transactions if not draft.stamp.covers(part.position)]
            if not pending:
                return
            if STOPPED in properties:
                stopped.append(properties[STOPPED])
                return
            self._require_own(draft)
            version = int(properties.get(SCHEMA_VERSION, 0))
            if newest.version > version:
                draft.evolve(newest)
            if events.speaks_of_schema and newest.version >= version:
                self._pass_on(draft, work.newest)
            changes = list(fold(pending))
            for change, position in changes:
                draft.add_snapshot(_checked(change), schemas, position)
            if changes or draft.updates:
                draft.set_stamp(pending[-1].position)
                draft.retain(self._retention)

        done = self.tables.commit(work.table, build)
        if stopped:
            raise NeedsComparison(f"{work.name} was stopped ({stopped[-1]}): comparing")
        return _told(done)

    def probe(self, work: TableWork) -> None:
        """Whether a comparison could be committed: the table is there or can be made, ours, and its storage takes a
        file and gives it back. TableProblem, SchemaProblem or TableUnavailable if not.
        """
        schemas = self.schemas(work)
        self.tables.forget_one(work.table.id)
        table = self.tables.ensure(work.table, schemas[max(schemas)])
        self._require_own(TableCommit(table))
        self.tables.try_storage(table)

    def compare(self, work: TableWork, digest: Digest) -> bool:
        """Whether the files differ from the registry's; if not, all else is brought up to date."""
        schemas = self.schemas(work)
        table = self.tables.ensure(work.table, schemas[max(schemas)])
        if Stamp.read(table.metadata).digest != digest:
            self._require_own(TableCommit(table))
            return True
        self.settle(work, [], [], None)
        return False

    def live(self, work: TableWork) -> tuple[int | None, dict[str, LiveFile]]:
        """The current snapshot, and what Iceberg has in it by path."""
        table = self.tables.load(work.table)
        if table is None:
            raise TableUnavailable(f"the Iceberg table {work.name} was dropped meanwhile")
        return table.metadata.current_snapshot_id, self.tables.read(work.table, lambda: files_by_path(table))

    def settle(
        self,
        work: TableWork,
        added: list[TableFile],
        removed: list[LiveFile],
        before: Digest | None,
        base: int | None = None,
    ) -> Committed | None:
        """The registry's files, schema and properties, in one commit; `before` is what `live` had in `base`."""
        schemas = self.schemas(work)

        def build(draft: TableCommit) -> None:
            self._require_own(draft)
            if before is not None and draft.table.metadata.current_snapshot_id != base:
                raise TableUnavailable(f"{work.name} was committed to while it was compared with the registry")
            draft.evolve(schemas[max(schemas)])
            self._pass_on(draft, work.newest)
            if before is not None:
                draft.restart_digest(before)
            if added or removed:
                draft.add_snapshot(_checked(SnapshotChange(added, removed)), schemas)
            draft.set_stamp(None)
            draft.stop(None)
            draft.retain(self._retention)

        done = _told(self.tables.commit(work.table, build))
        if done is not None:
            log.info("table settled", table=work.name, added=len(added), removed=len(removed))
        return done

    def stop(self, work: TableWork, reason: str) -> None:
        """Says so in the Iceberg table itself, for other engines and for a registry that was restored, if it can."""
        try:
            if self.tables.load(work.table, cached=True) is not None:
                self.tables.commit(work.table, lambda draft: draft.stop(reason))
        except Exception as error:  # whatever is the matter with the table may also keep us from writing it down
            log.info("the reason can't be written into the table", table=work.name, error=str(error))

    def schemas(self, work: TableWork) -> dict[int, TableSchema]:
        """SchemaProblem names the table."""
        known = self._schemas.setdefault(work.table.id, {})
        for version, row in work.metadata.items():
            if version not in known or known[version][0] != row:
                known[version] = (row, TableSchema.of(row, table=work.name))
        return {version: known[version][1] for version in work.metadata}

    def forget(self, table_id: int) -> None:
        self._schemas.pop(table_id, None)

    def _require_own(self, draft: TableCommit) -> None:
        require_format(draft.table)
        try:
            draft.require_own()
        except ForeignCommit:
            require_supported(draft.table)  # says more
            raise

    def _pass_on(self, draft: TableCommit, row: TableMetadata) -> None:
        given = parse_json(row.properties)
        if not isinstance(given, Mapping):
            return
        wanted = {name: str(value) for name, value in given.items() if name.startswith(_PASSED_ON)}
        before: Mapping[str, str] = draft.table.metadata.properties
        if any(before.get(name) != value for name, value in wanted.items()):
            draft.set_properties(wanted)


def _checked(change: SnapshotChange) -> SnapshotChange:
    for file in change.added:
        if file.file_type != "parquet":
            raise BadFile(f"{file.file_path} is {file.file_type}: Iceberg tables here hold Parquet files only")
    return change


def _told(done: TableCommit | None) -> Committed | None:
    return None if done is None else Committed(done.snapshots, done.digest.files, done.unreferenced)


def is_iceberg(rows: Iterable[TableMetadata]) -> bool:
    """Whether a table, by its newest version, is one for Iceberg."""
    return max(rows, key=lambda row: row.schema_version).format == "parquet"
