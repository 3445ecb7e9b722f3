"""Iceberg's side: what the manifests say, what the stamp says, and who has committed. Blocking."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata
from pyiceberg.table.snapshots import Snapshot

from components.commands.verify.report import Kind
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    ForeignTable,
    IcebergTables,
    Stamp,
    TableProblem,
    TableUnavailable,
    dated_files,
    identifier_of,
    require_supported,
)
from components.lib.lake.iceberg.schema_updates import same_columns, spec_key
from components.lib.lake.iceberg.stamp import SCHEMA_ID, SCHEMA_VERSION, STOPPED
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable, TableMetadata

_ENGINE = ("engine-name", "engine-version")
_ENGINE_SIGNS = {"spark.app.id": "spark", "app-id": "spark", "trino_query_id": "trino", "flink.job-id": "flink"}
_AT_MOST = 1_000  # snapshots to look back for our own last one


class Committed(msgspec.Struct):
    """A table as the catalog has it. `unreadable` says why there is no digest of what the manifests say."""

    loaded: Table
    stamp: Stamp
    digest: Digest | None
    stopped: str | None = None
    foreign: list[str] = []
    unreadable: str | None = None
    files: list[tuple[LiveFile, int | None]] = []

    @property
    def left_alone(self) -> bool:
        """Whether waiting for the updater is of no use: it waits for a person itself."""
        return bool(self.foreign) or self.unreadable is not None

    @property
    def stamp_is_wrong(self) -> bool:
        return self.digest is not None and not self.foreign and self.stamp.digest != self.digest


def look(tables: IcebergTables, table: LakeTable, *, keep_files: bool = False) -> Committed | None:
    """None if there is no such table, or if its name is still that of another of ours, which was dropped or renamed.
    TableProblem if what the catalog has under its name is somebody else's, or broken.

    Memory is bounded by one manifest unless the files are to be kept.
    """
    try:
        found = _look(tables, table, keep_files)
    except TableProblem:  # metadata that a commit has just replaced, perhaps
        return _look(tables, table, keep_files)
    if found is not None and found.unreadable is not None:
        return _look(tables, table, keep_files)
    return found


def _look(tables: IcebergTables, table: LakeTable, keep_files: bool) -> Committed | None:
    try:
        loaded = tables.load(table)
    except ForeignTable:
        if tables.owner(identifier_of(table)) is None:
            raise
        return None
    if loaded is None:
        return None
    metadata = loaded.metadata
    stamp = Stamp.read(metadata)
    foreign = list(foreign_commits(metadata, stamp))
    found = Committed(loaded, stamp, None, metadata.properties.get(STOPPED), foreign)
    digest = Digest()
    try:
        require_supported(loaded)
        for file, since in dated_files(loaded):
            digest.add(file)
            if keep_files:
                found.files.append((file, since))
    except (TableProblem, FileNotFoundError) as problem:
        found.unreadable = str(problem)
    except OSError as error:
        raise TableUnavailable(f"the storage of Iceberg's metadata does not answer: {error}") from error
    except Exception as error:  # whatever a damaged manifest makes of its decoder
        found.unreadable = f"a manifest of {'.'.join(loaded.name())} can't be decoded: {error!r}"
    else:
        found.digest = digest
    return found


def remarks(found: Committed | None, table: LakeTable, metadata: TableMetadata) -> Iterator[tuple[Kind, str]]:
    """What of the table as a whole is not as it should be."""
    if found is None:
        yield Kind.NO_ICEBERG_TABLE, f"the catalog has no {full_name(table)} for table {table.id}"
        return
    loaded = found.loaded
    if found.stopped is not None:
        yield Kind.STOPPED, found.stopped
    if found.unreadable is not None:
        yield Kind.UNREADABLE, found.unreadable
    if found.stamp_is_wrong:
        yield Kind.STAMP, "`astha.digest` is not that of the files in the current snapshot"
    yield from _schema_remarks(loaded, table, metadata)


def _schema_remarks(loaded: Table, table: LakeTable, metadata: TableMetadata) -> Iterator[tuple[Kind, str]]:
    known = loaded.metadata.properties.get(SCHEMA_VERSION, "0")
    if known != str(metadata.schema_version):
        yield Kind.SCHEMA, f"Iceberg has version {known}, the registry version {metadata.schema_version}"
        return
    try:
        wanted = TableSchema.of(metadata, table=full_name(table))
    except SchemaProblem as problem:
        yield Kind.SCHEMA, str(problem)
        return
    of = f"of version {wanted.version}"
    if not same_columns(loaded.schema(), wanted.iceberg):
        yield Kind.SCHEMA, f"columns {of}: Iceberg has {_columns(loaded)}, the registry {_columns(wanted)}"
    if spec_key(loaded.spec()) != spec_key(wanted.partition):
        yield Kind.SCHEMA, f"partitioning {of}: Iceberg has {loaded.spec()}, the registry {wanted.partition}"
    if loaded.sort_order().fields != wanted.order.fields:
        yield Kind.SCHEMA, f"order {of}: Iceberg has {loaded.sort_order()}, the registry {wanted.order}"


def _columns(of: Table | TableSchema) -> str:
    schema = of.schema() if isinstance(of, Table) else of.iceberg
    return ", ".join(f"{field.field_id}: {field.name} {field.field_type}" for field in schema.fields)


def foreign_commits(metadata: IcebergMetadata, stamp: Stamp) -> Iterator[str]:
    """What others have done since our last commit: each snapshot with its operation and engine, oldest first."""
    if metadata.current_snapshot_id != stamp.snapshot:
        snapshots, reached = _since(metadata, stamp.snapshot)
        if reached:
            yield from (describe(snapshot) for snapshot in reversed(snapshots))
        else:
            yield (
                f"the current snapshot is {metadata.current_snapshot_id}, which does not descend from Astha's last, "
                f"{stamp.snapshot}: the table was rolled back, or its snapshots have expired"
            )
    known = metadata.properties.get(SCHEMA_ID)
    if known is not None and known != str(metadata.current_schema_id):
        yield f"the current schema is {metadata.current_schema_id}, Astha's is {known}"


def _since(metadata: IcebergMetadata, ours: int | None) -> tuple[list[Snapshot], bool]:
    found: list[Snapshot] = []
    current = metadata.current_snapshot()
    while current is not None and current.snapshot_id != ours and len(found) < _AT_MOST:
        found.append(current)
        parent = current.parent_snapshot_id
        current = None if parent is None else metadata.snapshot_by_id(parent)
    return found, (current is None and ours is None) or (current is not None and current.snapshot_id == ours)


def describe(snapshot: Snapshot) -> str:
    summary = snapshot.summary
    if summary is None:
        return f"snapshot {snapshot.snapshot_id}"
    said = dict(summary.additional_properties)
    changes = [
        f"{said[name]} {text}"
        for name, text in (
            ("added-data-files", "files added"),
            ("deleted-data-files", "files removed"),
            ("added-delete-files", "delete files added"),
        )
        if said.get(name, "0") != "0"
    ]
    return f"snapshot {snapshot.snapshot_id}, {summary.operation.value} by {_engine(said)}" + (
        f" ({', '.join(changes)})" if changes else ""
    )


def _engine(summary: dict[str, str]) -> str:
    named = " ".join(summary[name] for name in _ENGINE if name in summary)
    if named:
        return named
    signs = [engine for sign, engine in _ENGINE_SIGNS.items() if sign in summary]
    return signs[0] if signs else "an engine that does not say its name"
