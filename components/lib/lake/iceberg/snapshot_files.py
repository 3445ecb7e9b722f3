"""The files of a snapshot, read from its manifests."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg.errors import TableProblem, Unsupported
from components.lib.lake.iceberg.manifests import FORMAT, is_live
from components.lib.lake.iceberg.schema_updates import schema_of
from components.lib.lake.partitioning.partition_values import Partitioning
from components.lib.lake.schema.table_schema import TableSchema


def require_format(table: Table) -> None:
    """Raises `Unsupported` if the format version cannot be written."""
    if table.metadata.format_version > FORMAT:
        raise Unsupported(
            f"{'.'.join(table.name())} has Iceberg format version {table.metadata.format_version}, which can't be "
            "written here: see docs/lake.md"
        )


def require_supported(table: Table) -> None:
    """Raises `Unsupported` if the table has delete files, or a later format version."""
    require_format(table)
    snapshot = table.metadata.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    if any(manifest.content == ManifestContent.DELETES and is_live(manifest) for manifest in manifests):
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


def live_digest(table: Table, snapshot: Snapshot | None = None) -> Digest:
    digest = Digest()
    for file in live_files(table, snapshot):
        digest.add(file)
    return digest


class PartitionPaths:
    """Partition paths of files, by the partition specs that they were written with."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._known: dict[int, Partitioning] = {}

    def of(self, file: DataFile) -> str:
        known = self._known.get(file.spec_id)
        if known is None:
            known = self._known[file.spec_id] = self._partitioning(self._metadata.specs()[file.spec_id])
        return known.path(file.partition)

    def _partitioning(self, spec: PartitionSpec) -> Partitioning:
        return Partitioning(TableSchema(0, schema_of(self._metadata, spec), spec, UNSORTED_SORT_ORDER))
