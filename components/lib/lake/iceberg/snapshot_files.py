"""The files of a snapshot, read from its manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg.errors import TableProblem, Unsupported
from components.lib.lake.iceberg.manifests import FORMAT, is_live
from components.lib.lake.iceberg.schema_updates import SchemaHistory, schema_of
from components.lib.lake.iceberg.stamp import Stamp
from components.lib.lake.partitioning.partition_values import Partitioning
from components.lib.lake.schema.table_schema import TableSchema


class LiveDeleteFile(msgspec.Struct, frozen=True, gc=False, order=True):
    """The properties of a delete file that must be equal in the registry and in Iceberg. Several deletion vectors may
    be in one file, so they are counted.
    """

    path: str
    rows: int


def require_format(table: Table) -> None:
    """Raises `Unsupported` if the format version cannot be written."""
    if table.metadata.format_version > FORMAT:
        raise Unsupported(
            f"{'.'.join(table.name())} has Iceberg format version {table.metadata.format_version}, which can't be "
            "written here: see docs/parts/lake.md"
        )


def require_supported(table: Table) -> None:
    """Raises `Unsupported` if another engine has added delete files since the stamp, or a later format version."""
    require_format(table)
    known = Stamp.read(table.metadata).snapshot
    ours = None if known is None else table.metadata.snapshot_by_id(known)
    before = {manifest.manifest_path for manifest in _delete_manifests(table, ours)} if ours is not None else set()
    if any(manifest.manifest_path not in before for manifest in _delete_manifests(table, None)):
        raise Unsupported(
            f"{'.'.join(table.name())} has delete files, written by another engine; only such an engine can apply "
            "them: rewrite the data files there and `astha iceberg adopt` the table, or `astha iceberg revert` it"
        )


def data_files(table: Table, snapshot: Snapshot | None = None) -> Iterator[DataFile]:
    """Yields live files with the statistics of their manifests. Memory is bounded by one manifest."""
    return (entry.data_file for entry in _entries(table, snapshot))


def live_files(table: Table, snapshot: Snapshot | None = None) -> Iterator[LiveFile]:
    """Yields live files in the form of the registry. Raises `Unsupported` if a file is not Parquet."""
    return (file for file, _ in dated_files(table, snapshot))


def files_by_path(table: Table) -> dict[str, LiveFile]:
    """Raises `TableProblem` if a file is listed twice, so that its rows are read twice: a set cannot show that."""
    found: dict[str, LiveFile] = {}
    for file in live_files(table):
        if file.path in found:
            raise TableProblem(
                f"{'.'.join(table.name())} has {file.path} twice: drop the table from the catalog, and "
                "`astha refresh iceberg_updater` creates it from the registry"
            )
        found[file.path] = file
    return found


def dated_files(table: Table, snapshot: Snapshot | None = None) -> Iterator[tuple[LiveFile, int | None]]:
    """Yields each file with the snapshot that added it; a file that was removed and added again has the later one."""
    paths = PartitionPaths(table.metadata)
    for entry in _entries(table, snapshot):
        file = entry.data_file
        if file.file_format != FileFormat.PARQUET:
            raise Unsupported(f"{file.file_path} is {file.file_format.value}: only Parquet can be adopted")
        yield LiveFile(file.file_path, file.record_count, file.file_size_in_bytes, paths.of(file)), entry.snapshot_id


def _entries(table: Table, snapshot: Snapshot | None) -> Iterator[ManifestEntry]:
    snapshot = snapshot or table.metadata.current_snapshot()
    if snapshot is None:
        return
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA and is_live(manifest):
            yield from manifest.fetch_manifest_entry(table.io)


def delete_files(table: Table, snapshot: Snapshot | None = None) -> Counter[LiveDeleteFile]:
    """Returns the live delete files of the current snapshot, or of this one."""
    found: Counter[LiveDeleteFile] = Counter()
    for manifest in _delete_manifests(table, snapshot):
        for entry in manifest.fetch_manifest_entry(table.io):
            found[LiveDeleteFile(entry.data_file.file_path, entry.data_file.record_count)] += 1
    return found


def may_have_delete_files(table: Table) -> bool:
    """Returns False only if the current snapshot has none, by its summary."""
    snapshot = table.metadata.current_snapshot()
    if snapshot is None:
        return False
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return summary.get("total-delete-files") != "0"


def _delete_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    snapshot = snapshot or table.metadata.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    return [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES and is_live(manifest)]


def live_digest(table: Table, snapshot: Snapshot | None = None) -> Digest:
    digest = Digest()
    for file in live_files(table, snapshot):
        digest.add(file)
    return digest


class PartitionPaths:
    """Partition paths of files, by the partition specs that they were written with."""

    def __init__(self, metadata: SchemaHistory) -> None:
        self._metadata = metadata
        self._known: dict[int, Partitioning] = {}

    def of(self, file: DataFile) -> str:
        """Raises `PartitionProblem` if a value is too long, or the spec has a transform that is not known."""
        return self._partitioning(file.spec_id).path(file.partition)

    def _partitioning(self, spec_id: int) -> Partitioning:
        known = self._known.get(spec_id)
        if known is None:
            spec = self._metadata.specs()[spec_id]
            schema = schema_of(self._metadata, spec)
            known = self._known[spec_id] = Partitioning(TableSchema(0, schema, spec, UNSORTED_SORT_ORDER))
        return known
