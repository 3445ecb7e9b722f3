"""Makes one Iceberg commit of a table's events, or of its rows in a refresh. Blocking: runs on a `CommitterThread`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog
from pyiceberg.table import Table

from components.iceberg_updater.event_folding import TableEvents, fold
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    BadFile,
    ForeignCommit,
    IcebergTables,
    LiveDeleteFile,
    LiveFileSet,
    Retention,
    SnapshotChange,
    StagedFiles,
    Stamp,
    TableCommit,
    TableProblem,
    TableUnavailable,
    delete_files,
    files_by_path,
    may_have_delete_files,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.commits import FilesMissing
from components.lib.lake.iceberg.delete_entries import delete_entry
from components.lib.lake.iceberg.manifests import FORMAT
from components.lib.lake.iceberg.stamp import DIGEST, SCHEMA_VERSION, STOPPED
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.json_text import parse_json
from registry.models import LakeTable, TableDeleteFile, TableFile, TableMetadata

log = structlog.get_logger(__name__)

COMPARE = "to be compared with the registry"
"""The stop reason that adopt and revert leave: the table needs a refresh, and no further decision."""

_MAX_SCHEMAS = 512
"""Tables whose schemas are cached."""

_ICEBERG_PROPERTIES = ("history.expire.", "write.", "read.", "commit.", "comment")
"""Prefixes of the registry's table properties that are copied to the Iceberg table."""


class TargetTable(msgspec.Struct):
    """A registry table with the schema versions that a commit needs: those of its files, and the newest.

    ``fresh``: the row was read for this commit. In a refresh, ``pointer`` is the location of its Iceberg metadata in
    the same registry snapshot; UNSET if the catalog is not the registry's.
    """

    table: LakeTable
    metadata: dict[int, TableMetadata]
    fresh: bool = True
    pointer: str | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def name(self) -> str:
        return f"{self.table.database}.{self.table.name}"

    @property
    def newest(self) -> TableMetadata:
        return self.metadata[max(self.metadata)]

    @property
    def location(self) -> str | None:
        """The metadata file that the refresh compares with; None: the current one."""
        return self.pointer or None

    def may_displace(self, found: Table) -> bool:
        """Whether another of our tables that has this one's name is on its way to another name, and can be moved aside.

        If not, an engine may have dropped this table and created that one.
        """
        return self.fresh if self.pointer is msgspec.UNSET else self.pointer == found.metadata_location


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
        self._schemas: OrderedDict[int, dict[int, tuple[TableMetadata, TableSchema]]] = OrderedDict()

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
        if events.adds_delete_files:
            raise NeedsRefresh(f"{target.name} has delete files that Iceberg does not have: comparing them")
        schemas = self.schemas(target)
        newest = schemas[max(schemas)]
        if not events.creates and not self.tables.has(target.table):
            raise NeedsRefresh(f"{target.name} has no Iceberg table: creating it from the registry")
        table = self._ensured(target, new=events.creates)
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
            changes = list(fold(pending, has_deletes=may_have_delete_files(draft.table)))
            _require_absent(draft.table, [change for change, _ in changes])
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
        self.tables.forget_one(target.table.id)
        table = self._ensured(target)
        self._require_own(TableCommit(table))
        self.tables.try_storage(table)

    def has_different_files(self, target: TargetTable, digest: Digest, deletes: Sequence[TableDeleteFile] = ()) -> bool:
        """Whether the live files differ from the registry's. If not, commits the schema and properties at once."""
        table = self.tables.as_of(self._ensured(target), target.location)
        stamp = Stamp.read(table.metadata)
        if stamp.digest != digest or self._has_different_deletes(target, table, deletes):
            self._require_own(TableCommit(table))
            return True
        if table.metadata.format_version > FORMAT and stamp.snapshot == table.metadata.current_snapshot_id:
            return False  # an engine writes it, through the catalog; there is nothing to commit
        self.commit_difference(target, None, [], None)
        return False

    def ensure(self, target: TargetTable) -> None:
        """The table exists in the catalog afterwards, under its name. Raises what `IcebergTables.ensure` does."""
        self._ensured(target)

    def _ensured(self, target: TargetTable, *, new: bool = False) -> Table:
        schemas = self.schemas(target)
        return self.tables.ensure(
            target.table,
            schemas[max(schemas)],
            new=new,
            create=target.location is None,  # else an engine has dropped it since the registry was read
            displace=target.may_displace,
        )

    def has_newer_schema(self, target: TargetTable) -> bool:
        """Whether Iceberg has a schema version that the registry, as it was read, does not have."""
        table = self.tables.load(target.table, cached=True)
        return table is not None and int(table.metadata.properties.get(SCHEMA_VERSION, 0)) > max(target.metadata)

    def _has_different_deletes(self, target: TargetTable, table: Table, deletes: Sequence[TableDeleteFile]) -> bool:
        if not deletes and not may_have_delete_files(table):
            return False
        return self.tables.read(target.table, lambda: delete_files(table)) != registered_deletes(deletes)

    def live(self, target: TargetTable) -> LiveFileSet:
        """Returns the files of the current snapshot, or of that of the refresh. Call `has_different_files` before."""
        table = self.tables.load(target.table, cached=True)
        if table is None:
            raise TableUnavailable(f"the Iceberg table {target.name} was dropped meanwhile")
        table = self.tables.as_of(table, target.location)
        return self.tables.read(target.table, lambda: LiveFileSet.read(table))

    def read_removed(self, target: TargetTable, live: LiveFileSet) -> list[LiveFile]:
        """Returns the files that are left in the set."""
        return self.tables.read(target.table, live.read_left)

    def stage(self, target: TargetTable) -> StagedFiles:
        """Begins to write manifests of files that `commit_difference` will add."""
        table = self.tables.load(target.table, cached=True)
        if table is None:
            raise TableUnavailable(f"the Iceberg table {target.name} was dropped meanwhile")
        draft, schemas = TableCommit(table), self.schemas(target)
        self._require_own(draft)
        draft.evolve(schemas[max(schemas)])
        return draft.stage(schemas, target.table.file_count)

    def add_staged(self, target: TargetTable, staged: StagedFiles, files: list[TableFile]) -> None:
        self.tables.write(target.table, lambda: staged.add(_checked(SnapshotChange(files)).added))

    def commit_difference(
        self,
        target: TargetTable,
        staged: StagedFiles | None,
        removed: list[LiveFile],
        before: Digest | None,
        base: int | None = None,
        deletes: Sequence[TableDeleteFile] | None = None,
    ) -> CommitResult | None:
        """Commits the registry's files, schema and properties. `staged`: files to add. `before`: digest of the files
        in `base`. `deletes`: all delete files of the registry; None: Iceberg has the same.

        What engines have committed since the registry was read stays: the registry did not have it yet.
        """
        newest = self.schemas(target)[max(target.metadata)]

        def build(draft: TableCommit) -> None:
            self._require_own(draft)
            moved = target.location not in (None, draft.table.metadata_location)
            if before is not None:
                draft.restart_digest(_with_engine_commits(before, base, draft, self._as_of(draft, target)))
            if not moved or newest.version >= int(draft.table.metadata.properties.get(SCHEMA_VERSION, 0)):
                draft.evolve(newest)
                self._copy_properties(draft, target.newest)
            change = SnapshotChange([], removed)
            if deletes is not None:
                change_deletes(change, self._as_of(draft, target), deletes)
            if staged is not None or change.removed or change.deletes_added or change.deletes_removed:
                draft.add_snapshot(change, self.schemas(target), staged=staged)
            draft.set_stamp(None)
            draft.stop(None)
            draft.retain(self._retention)

        done = _result(self.tables.commit(target.table, build))
        if done is not None:
            added = 0 if staged is None else staged.digest.files
            log.info("refresh committed", table=target.name, added=added, removed=len(removed))
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
        self._schemas.move_to_end(target.table.id)
        if len(self._schemas) > _MAX_SCHEMAS:
            self._schemas.popitem(last=False)
        for version, row in target.metadata.items():
            if version not in known or known[version][0] != row:
                known[version] = (row, TableSchema.read(row, table=target.name))
        return {version: known[version][1] for version in target.metadata}

    def forget(self, table_id: int) -> None:
        self._schemas.pop(table_id, None)

    def _as_of(self, draft: TableCommit, target: TargetTable) -> Table:
        return self.tables.as_of(draft.table, target.location)

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


def _with_engine_commits(before: Digest, base: int | None, draft: TableCommit, compared: Table) -> Digest:
    """Returns the digest of the files of `base` and of those that engines have changed since.

    Raises `TableUnavailable` if other commits were made since: the difference to the registry may be in them.
    """
    metadata = draft.table.metadata
    snapshot = metadata.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != base:
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if DIGEST in summary:
            break
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    if (None if snapshot is None else snapshot.snapshot_id) != base:
        raise TableUnavailable(f"{'.'.join(draft.table.name())} was committed to while it was compared")
    return before.moved(Stamp.read(compared.metadata).digest, draft.stamp.digest)


def registered_deletes(deletes: Iterable[TableDeleteFile]) -> Counter[LiveDeleteFile]:
    return Counter(LiveDeleteFile(file.file_path, file.row_count) for file in deletes)


def change_deletes(change: SnapshotChange, table: Table, deletes: Sequence[TableDeleteFile]) -> None:
    """Adds to the change what makes Iceberg's delete files those of the registry. Raises `Unsupported` if Iceberg has
    lost some that can't be added again.
    """
    found, wanted = delete_files(table), registered_deletes(deletes)
    change.deletes_removed = sorted({file.path for file in found - wanted})
    missing = {file.path for file in wanted - found}
    change.deletes_added = [delete_entry(file, table.metadata) for file in deletes if file.file_path in missing]


def _require_absent(table: Table, changes: Iterable[SnapshotChange]) -> None:
    """Raises `NeedsRefresh` if Iceberg has a file already that a rollback restored: after it was removed again, and
    before these events arrived, an engine has gone back to a snapshot with that file.
    """
    removed: set[str] = set()
    restored: set[str] = set()
    for change in changes:
        restored |= {file.file_path for file in change.added if file.operation == "rollback"} - removed
        removed |= {file.path for file in change.removed}
    present = sorted(restored & files_by_path(table).keys()) if restored else []
    if present:
        raise NeedsRefresh(f"{'.'.join(table.name())} has {present[0]} already: refreshing it from the registry")


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
