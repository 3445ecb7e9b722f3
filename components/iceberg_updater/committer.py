"""Makes one Iceberg commit of a table's events, or of its rows in a refresh. Blocking: runs on a `CommitterThread`."""

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
"""The stop reason that adopt and revert leave: the table needs a refresh, and no further decision."""

_ICEBERG_PROPERTIES = ("history.expire.", "write.", "read.", "commit.", "comment")
"""Prefixes of the registry's table properties that are copied to the Iceberg table."""


class TargetTable(msgspec.Struct):
    """A registry table with the schema versions that a commit needs: those of its files, and the newest."""

    table: LakeTable
    metadata: dict[int, TableMetadata]

    @property
    def name(self) -> str:
        return f"{self.table.database}.{self.table.name}"

    @property
    def newest(self) -> TableMetadata:
        return self.metadata[max(self.metadata)]


class CommitResult(msgspec.Struct):
    """`files`: live files after the commit. `unreferenced`: metadata files that are no longer needed."""

    snapshots: int = 0
    files: int = 0
    unreferenced: list[str] = []


class NeedsRefresh(Exception):
    """The table cannot be updated from its events; it must be compared with the registry."""


class Committer:
    def __init__(self, tables: IcebergTables, retention: Retention) -> None:
        self.tables = tables
        self._retention = retention
        self._schemas: dict[int, dict[int, tuple[TableMetadata, TableSchema]]] = {}

    def commit(self, target: TargetTable, events: TableEvents) -> CommitResult | None:
        """Commits the transactions that the table's stamp does not cover. Returns None if there are none.

        Raises `NeedsRefresh` if the table must be compared with the registry; `TableProblem` or `SchemaProblem` if an
        operator has to act, and stops the table; `TableUnavailable` if this table should be retried, and any other
        `CatalogUnavailable` if all of them should.
        """
        try:
            return self._commit(target, events)
        except (TableProblem, SchemaProblem) as problem:
            self.stop(target, str(problem))
            raise
        except FilesMissing as error:
            raise NeedsRefresh(f"{error}: refreshing it from the registry") from error

    def _commit(self, target: TargetTable, events: TableEvents) -> CommitResult | None:
        schemas = self.schemas(target)
        newest = schemas[max(schemas)]
        if not events.creates and not self.tables.has(target.table):
            raise NeedsRefresh(f"{target.name} has no Iceberg table: creating it from the registry")
        table = self.tables.ensure(target.table, newest, new=events.creates)
        if STOPPED in table.metadata.properties:
            self.tables.load(target.table)  # an operator may have resolved it
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
            if events.changes_schema and newest.version >= version:
                self._copy_properties(draft, target.newest)
            changes = list(fold(pending))
            for change, position in changes:
                draft.add_snapshot(_checked(change), schemas, position)
            if changes or draft.updates:
                draft.set_stamp(pending[-1].position)
                draft.retain(self._retention)

        done = self.tables.commit(target.table, build)
        if stopped:
            raise NeedsRefresh(f"{target.name} was stopped ({stopped[-1]}): refreshing it")
        return _result(done)

    def probe(self, target: TargetTable) -> None:
        """Checks that a refresh could be committed: the table exists or can be created, belongs to this registry, and
        its storage accepts and returns a file. Raises `TableProblem`, `SchemaProblem` or `TableUnavailable` if not.
        """
        schemas = self.schemas(target)
        self.tables.forget_one(target.table.id)
        table = self.tables.ensure(target.table, schemas[max(schemas)])
        self._require_own(TableCommit(table))
        self.tables.try_storage(table)

    def has_different_files(self, target: TargetTable, digest: Digest) -> bool:
        """Whether the live files differ from the registry's. If not, commits the schema and properties at once."""
        schemas = self.schemas(target)
        table = self.tables.ensure(target.table, schemas[max(schemas)])
        if Stamp.read(table.metadata).digest != digest:
            self._require_own(TableCommit(table))
            return True
        self.commit_difference(target, [], [], None)
        return False

    def live(self, target: TargetTable) -> tuple[int | None, dict[str, LiveFile]]:
        """Returns the current snapshot's id and its files by path."""
        table = self.tables.load(target.table)
        if table is None:
            raise TableUnavailable(f"the Iceberg table {target.name} was dropped meanwhile")
        return table.metadata.current_snapshot_id, self.tables.read(target.table, lambda: files_by_path(table))

    def commit_difference(
        self,
        target: TargetTable,
        added: list[TableFile],
        removed: list[LiveFile],
        before: Digest | None,
        base: int | None = None,
    ) -> CommitResult | None:
        """Commits the registry's files, schema and properties. `before`: digest of the files in `base`."""
        schemas = self.schemas(target)

        def build(draft: TableCommit) -> None:
            self._require_own(draft)
            if before is not None and draft.table.metadata.current_snapshot_id != base:
                raise TableUnavailable(f"{target.name} was committed to while it was compared with the registry")
            draft.evolve(schemas[max(schemas)])
            self._copy_properties(draft, target.newest)
            if before is not None:
                draft.restart_digest(before)
            if added or removed:
                draft.add_snapshot(_checked(SnapshotChange(added, removed)), schemas)
            draft.set_stamp(None)
            draft.stop(None)
            draft.retain(self._retention)

        done = _result(self.tables.commit(target.table, build))
        if done is not None:
            log.info("refresh committed", table=target.name, added=len(added), removed=len(removed))
        return done

    def stop(self, target: TargetTable, reason: str) -> None:
        """Writes the reason into the Iceberg table, if possible: for other engines, and for a restored registry."""
        try:
            if self.tables.load(target.table, cached=True) is not None:
                self.tables.commit(target.table, lambda draft: draft.stop(reason))
        except Exception as error:  # the same problem may prevent this commit
            log.info("stop reason not written to the table", table=target.name, error=str(error))

    def schemas(self, target: TargetTable) -> dict[int, TableSchema]:
        """Raises `SchemaProblem`, with the table's name, for a version that cannot be read."""
        known = self._schemas.setdefault(target.table.id, {})
        for version, row in target.metadata.items():
            if version not in known or known[version][0] != row:
                known[version] = (row, TableSchema.of(row, table=target.name))
        return {version: known[version][1] for version in target.metadata}

    def forget(self, table_id: int) -> None:
        self._schemas.pop(table_id, None)

    def _require_own(self, draft: TableCommit) -> None:
        require_format(draft.table)
        try:
            draft.require_own()
        except ForeignCommit:
            require_supported(draft.table)  # its error is more specific
            raise

    def _copy_properties(self, draft: TableCommit, row: TableMetadata) -> None:
        given = parse_json(row.properties)
        if not isinstance(given, Mapping):
            return
        wanted = {name: str(value) for name, value in given.items() if name.startswith(_ICEBERG_PROPERTIES)}
        before: Mapping[str, str] = draft.table.metadata.properties
        if any(before.get(name) != value for name, value in wanted.items()):
            draft.set_properties(wanted)


def _checked(change: SnapshotChange) -> SnapshotChange:
    for file in change.added:
        if file.file_type != "parquet":
            raise BadFile(f"{file.file_path} is {file.file_type}: Iceberg tables here hold Parquet files only")
    return change


def _result(done: TableCommit | None) -> CommitResult | None:
    return None if done is None else CommitResult(done.snapshots, done.digest.files, done.unreferenced)


def is_iceberg(rows: Iterable[TableMetadata]) -> bool:
    """Whether the newest version's format is one that becomes an Iceberg table."""
    return max(rows, key=lambda row: row.schema_version).format == "parquet"
