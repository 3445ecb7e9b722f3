"""Iceberg's side: the files in the manifests, the stamp, and commits of other engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata
from pyiceberg.table.snapshots import Snapshot

from components.commands.verify.diff import Finding
from components.commands.verify.report import DifferenceKind
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    ForeignTable,
    IcebergTables,
    LiveDeleteFile,
    Stamp,
    TableProblem,
    TableUnavailable,
    dated_files,
    delete_files,
    identifier_of,
    may_have_delete_files,
    require_supported,
)
from components.lib.lake.iceberg.schema_updates import same_columns, spec_key
from components.lib.lake.iceberg.stamp import SCHEMA_ID, SCHEMA_VERSION, STOPPED
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable, TableMetadata

_ENGINE = ("engine-name", "engine-version")
_ENGINE_SIGNS = {"spark.app.id": "spark", "app-id": "spark", "trino_query_id": "trino", "flink.job-id": "flink"}
_MAX_LOOKBACK = 1_000  # snapshots to search for the last one of the updater


class IcebergState(msgspec.Struct):
    """A table as the catalog has it. `unreadable`: why the manifests' digest is missing."""

    loaded: Table
    stamp: Stamp
    digest: Digest | None
    stopped: str | None = None
    external_commits: list[str] = []
    unreadable: str | None = None
    files: list[tuple[LiveFile, int | None]] = []
    deletes: Counter[LiveDeleteFile] = msgspec.field(default_factory=Counter)

    @property
    def needs_operator(self) -> bool:
        """Whether the updater itself waits for an operator, so that waiting for it is useless."""
        return bool(self.external_commits) or self.unreadable is not None

    @property
    def stamp_is_wrong(self) -> bool:
        return self.digest is not None and not self.external_commits and self.stamp.digest != self.digest


def read_state(tables: IcebergTables, table: LakeTable, *, keep_files: bool = False) -> IcebergState | None:
    """Blocking. Returns None if there is no such table, or if another table of this registry, since dropped or renamed,
    still has its name. Raises `TableProblem` if the catalog's table of that name is unknown or broken.

    Memory is bounded by one manifest unless the files are kept.
    """
    try:
        found = _read_state(tables, table, keep_files)
    except TableProblem:  # perhaps metadata that a commit has just replaced
        return _read_state(tables, table, keep_files)
    if found is not None and found.unreadable is not None:
        return _read_state(tables, table, keep_files)
    return found


def _read_state(tables: IcebergTables, table: LakeTable, keep_files: bool) -> IcebergState | None:
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
    external = list(external_commits(metadata, stamp))
    found = IcebergState(loaded, stamp, None, metadata.properties.get(STOPPED), external)
    digest = Digest()
    try:
        if external:
            require_supported(loaded)
        if may_have_delete_files(loaded):
            found.deletes = delete_files(loaded)
        for file, since in dated_files(loaded):
            digest.add(file)
            if keep_files:
                found.files.append((file, since))
    except (TableProblem, FileNotFoundError) as problem:
        found.unreadable = str(problem)
    except OSError as error:
        raise TableUnavailable(f"the storage of Iceberg's metadata does not answer: {error}") from error
    except Exception as error:  # a damaged manifest can raise anything
        found.unreadable = f"a manifest of {'.'.join(loaded.name())} can't be decoded: {error!r}"
    else:
        found.digest = digest
    return found


def table_findings(
    found: IcebergState | None, table: LakeTable, metadata: TableMetadata, deletes: Counter[LiveDeleteFile]
) -> Iterator[Finding]:
    """Yields what is wrong with the table as a whole. `deletes` are the registered delete files."""
    if found is None:
        yield DifferenceKind.NO_ICEBERG_TABLE, f"the catalog has no {full_name(table)} for table {table.id}"
        return
    loaded = found.loaded
    if found.stopped is not None:
        yield DifferenceKind.STOPPED, found.stopped
    if found.unreadable is not None:
        yield DifferenceKind.UNREADABLE, found.unreadable
    if found.stamp_is_wrong:
        yield DifferenceKind.STAMP, "`astha.digest` does not match the files in the current snapshot"
    if found.unreadable is None:
        yield from _delete_findings(found.deletes, deletes)
    yield from _schema_findings(loaded, table, metadata)


def _delete_findings(found: Counter[LiveDeleteFile], registered: Counter[LiveDeleteFile]) -> Iterator[Finding]:
    for kind, files in (
        (DifferenceKind.DELETES_LOST, registered - found),
        (DifferenceKind.DELETES_UNKNOWN, found - registered),
    ):
        for file in sorted(files):
            yield kind, f"{file.path} ({file.rows:,} rows)"


def _schema_findings(loaded: Table, table: LakeTable, metadata: TableMetadata) -> Iterator[Finding]:
    known = loaded.metadata.properties.get(SCHEMA_VERSION, "0")
    if known != str(metadata.schema_version):
        yield DifferenceKind.SCHEMA, f"Iceberg has version {known}, the registry version {metadata.schema_version}"
        return
    try:
        wanted = TableSchema.read(metadata, table=full_name(table))
    except SchemaProblem as problem:
        yield DifferenceKind.SCHEMA, str(problem)
        return
    of = f"of version {wanted.version}"
    if not same_columns(loaded.schema(), wanted.iceberg):
        yield DifferenceKind.SCHEMA, f"columns {of}: Iceberg has {_columns(loaded)}, the registry {_columns(wanted)}"
    if spec_key(loaded.spec()) != spec_key(wanted.partition):
        yield DifferenceKind.SCHEMA, f"partitioning {of}: Iceberg has {loaded.spec()}, the registry {wanted.partition}"
    if loaded.sort_order().fields != wanted.order.fields:
        yield DifferenceKind.SCHEMA, f"order {of}: Iceberg has {loaded.sort_order()}, the registry {wanted.order}"


def _columns(of: Table | TableSchema) -> str:
    schema = of.schema() if isinstance(of, Table) else of.iceberg
    return ", ".join(f"{field.field_id}: {field.name} {field.field_type}" for field in schema.fields)


def external_commits(metadata: IcebergMetadata, stamp: Stamp) -> Iterator[str]:
    """Yields what other engines did since the updater's last commit, oldest first, with operation and engine."""
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
    while current is not None and current.snapshot_id != ours and len(found) < _MAX_LOOKBACK:
        found.append(current)
        parent = current.parent_snapshot_id
        current = None if parent is None else metadata.snapshot_by_id(parent)
    return found, (current is None and ours is None) or (current is not None and current.snapshot_id == ours)


def describe(snapshot: Snapshot) -> str:
    summary = snapshot.summary
    if summary is None:
        return f"snapshot {snapshot.snapshot_id}"
    properties = dict(summary.additional_properties)
    changes = [
        f"{properties[name]} {text}"
        for name, text in (
            ("added-data-files", "files added"),
            ("deleted-data-files", "files removed"),
            ("added-delete-files", "delete files added"),
        )
        if properties.get(name, "0") != "0"
    ]
    return f"snapshot {snapshot.snapshot_id}, {summary.operation.value} by {_engine(properties)}" + (
        f" ({', '.join(changes)})" if changes else ""
    )


def _engine(summary: dict[str, str]) -> str:
    named = " ".join(summary[name] for name in _ENGINE if name in summary)
    if named:
        return named
    signs = [engine for sign, engine in _ENGINE_SIGNS.items() if sign in summary]
    return signs[0] if signs else "an unnamed engine"
