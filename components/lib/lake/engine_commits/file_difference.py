"""The files that a commit adds to a table and removes from it: the difference of two snapshots.

Only manifests that are not in both manifest lists are read, so the cost does not depend on the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile, read_manifest_list

from components.lib.lake.engine_commits.deleted_rows import AffectedFiles, is_never_compacted, only_data_file
from components.lib.lake.engine_commits.errors import InvalidCommit, UnreadableFiles
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, StoredSnapshot
from components.lib.lake.engine_commits.manifest_lists import ListedManifest, ManifestLists
from components.lib.lake.engine_commits.schema_history import ParsedSchemas
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg.errors import with_mapped_errors
from components.lib.lake.iceberg.file_drafts import file_draft
from components.lib.lake.iceberg.manifests import is_live
from components.lib.lake.iceberg.pyiceberg_internals import delete_file_fields, live_entries
from components.lib.lake.iceberg.snapshot_files import PartitionPaths
from components.lib.lake.partitioning.partition_values import PartitionProblem
from registry.inputs import DeleteFileDraft, FileDraft
from registry.json_text import to_json_text

_THREADS = 16
"""Manifests on remote storage that are read at the same time."""

T = TypeVar("T")


class DataFileEntry(msgspec.Struct, frozen=True):
    """A live data file of a manifest."""

    file: DataFile
    live: LiveFile
    sequence_number: int
    snapshot_id: int | None


class FileDifference(msgspec.Struct, frozen=True):
    """Of one table; empty if the commit changes no files."""

    added: Sequence[DataFileEntry] = ()
    removed: Sequence[LiveFile] = ()
    deletes_added: Sequence[DeleteFileDraft] = ()
    deletes_removed: Sequence[tuple[str, int]] = ()
    required: Sequence[str] = ()  # data files that the added delete files may name, and that stay

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.deletes_added or self.deletes_removed)

    @property
    def spec_ids(self) -> set[int]:
        """The partition specs of the added files."""
        return {entry.file.spec_id for entry in self.added}

    def drafts(self, versions: Mapping[int, int], current: int) -> list[FileDraft]:
        """Returns the added files as drafts. ``versions`` maps spec ids to schema versions of the registry; files of
        other specs get the `current` version.
        """
        return [
            file_draft(entry.file, entry.live.partition_path, versions.get(entry.file.spec_id, current))
            for entry in self.added
        ]

    def applied_to(self, digest: Digest) -> Digest:
        """Returns the digest of the live files after the commit."""
        moved = digest.copy()
        for entry in self.added:
            moved.add(entry.live)
        for file in self.removed:
            moved.remove(file)
        return moved


def read_difference(
    io: FileIO,
    metadata: IcebergMetadata,
    old: StoredSnapshot | None,
    new: StoredSnapshot | None,
    lists: ManifestLists | None = None,
) -> FileDifference:
    """Returns how the files of `new` differ from those of `old`. ``metadata`` has the specs of both.

    Raises `UnreadableFiles` if a manifest is missing or damaged, `InvalidCommit` if a file appears twice or its
    partition can't be represented, `CatalogUnavailable` if the storage does not answer.
    """
    if old is not None and new is not None and old.snapshot_id == new.snapshot_id:
        return FileDifference()
    lists = lists or ManifestLists()
    before, after = _manifests(io, old, lists), _manifests(io, new, lists, old)
    old_only = [before[path] for path in sorted(before.keys() - after.keys()) if before[path].is_live]
    new_only = [after[path] for path in sorted(after.keys() - before.keys()) if after[path].is_live]
    entries = _read_all(io, [*old_only, *new_only])
    reader = _EntryReader(metadata)
    removed = reader.index(entry for found in entries[: len(old_only)] for entry in found)
    added = reader.index(entry for found in entries[len(old_only) :] for entry in found)
    deletes_added = [file for key, file in added.deletes.items() if key not in removed.deletes]
    affected = AffectedFiles(metadata, deletes_added)
    required: list[str] = []
    if affected and old is not None and new is not None and not is_never_compacted(metadata, old, deletes_added):
        shared = [found for found in _with_bounds(io, new) if found.manifest_path in before and is_live(found)]
        wanted = [after[found.manifest_path] for found in affected.manifests(shared)]
        stay = reader.index(entry for found in _read_all(io, wanted) for entry in found).data
        stay |= {path: entry for path, entry in added.data.items() if path in removed.data}
        required = [path for path, entry in stay.items() if affected.includes(entry.live.partition_path)]
    return FileDifference(
        added=[entry for path, entry in added.data.items() if path not in removed.data],
        removed=[entry.live for path, entry in removed.data.items() if path not in added.data],
        deletes_added=deletes_added,
        deletes_removed=[key for key in removed.deletes if key not in added.deletes],
        required=required,
    )


class _Index(msgspec.Struct):
    data: dict[str, DataFileEntry]
    deletes: dict[tuple[str, int], DeleteFileDraft]


class _EntryReader:
    def __init__(self, metadata: IcebergMetadata) -> None:
        self._paths = PartitionPaths(ParsedSchemas(metadata))

    def index(self, entries: Iterable[ManifestEntry]) -> _Index:
        index = _Index({}, {})
        for entry in entries:
            if entry.data_file.content == DataFileContent.DATA:
                data = self._data(entry)
                twice = index.data.setdefault(data.live.path, data) is not data
            else:
                delete = self._delete(entry)
                twice = index.deletes.setdefault(delete.key, delete) is not delete
            if twice:
                raise InvalidCommit(f"{entry.data_file.file_path} appears twice: its rows would be read twice")
        return index

    def _data(self, entry: ManifestEntry) -> DataFileEntry:
        file = entry.data_file
        live = LiveFile(file.file_path, file.record_count, file.file_size_in_bytes, self._path(file))
        return DataFileEntry(file, live, entry.sequence_number or 0, entry.snapshot_id)

    def _delete(self, entry: ManifestEntry) -> DeleteFileDraft:
        file = entry.data_file
        more = delete_file_fields(file)
        is_vector = file.file_format == FileFormat.PUFFIN
        return DeleteFileDraft(
            file_path=file.file_path,
            file_size=file.file_size_in_bytes,
            content="equality" if file.content == DataFileContent.EQUALITY_DELETES else "position",
            row_count=file.record_count,
            sequence_number=entry.sequence_number or 0,
            file_type=file.file_format.value.lower(),
            partition_path=self._path(file),
            spec_id=file.spec_id,
            equality_ids=to_json_text(list(file.equality_ids)) if file.equality_ids else None,
            referenced_data_file=more.referenced_data_file or only_data_file(file),
            content_offset=(more.content_offset or 0) if is_vector else 0,
            snapshot_id=entry.snapshot_id,
        )

    def _path(self, file: DataFile) -> str:
        try:
            return self._paths.of(file)
        except KeyError as error:
            raise InvalidCommit(f"{file.file_path}: the table has no partition spec {file.spec_id}") from error
        except (PartitionProblem, ValueError) as error:
            raise InvalidCommit(f"{file.file_path}: its partition can't be tracked: {error}") from error


def _manifests(
    io: FileIO, snapshot: StoredSnapshot | None, lists: ManifestLists, previous: StoredSnapshot | None = None
) -> Mapping[str, ListedManifest]:
    if snapshot is None:
        return {}
    location = snapshot.fields.manifest_list
    if location is None:
        raise InvalidCommit(
            f"snapshot {snapshot.snapshot_id} has no manifest list: it was written by an Iceberg version before 0.7"
        )
    before = None if previous is None else previous.fields.manifest_list
    return _readable(location, lambda: lists.read(io, location, before))


def _with_bounds(io: FileIO, snapshot: StoredSnapshot) -> list[ManifestFile]:
    """Returns the manifests with the bounds of their partitions, which `ManifestLists` leaves out."""
    location = str(snapshot.fields.manifest_list)
    return _readable(location, lambda: list(read_manifest_list(io.new_input(location))))


def _read_all(io: FileIO, manifests: Sequence[ListedManifest]) -> list[list[ManifestEntry]]:
    def read(manifest: ListedManifest) -> list[ManifestEntry]:
        return _readable(manifest.manifest_path, lambda: live_entries(io, manifest))

    if len(manifests) <= 1 or manifests[0].manifest_path.startswith(("file:", "/")):
        return [read(manifest) for manifest in manifests]
    with ThreadPoolExecutor(min(_THREADS, len(manifests)), "manifests") as threads:
        return list(threads.map(read, manifests))


def _readable(location: str, read: Callable[[], T]) -> T:
    try:
        return with_mapped_errors(read)
    except FileNotFoundError as error:
        raise UnreadableFiles(f"{location} does not exist: a commit must come after its files") from error
    except (ValueError, TypeError, KeyError, EOFError, AssertionError, IndexError, OverflowError) as error:
        raise UnreadableFiles(f"{location} is not a file of Iceberg manifests: {error}") from error
