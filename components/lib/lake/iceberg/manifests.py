"""Manifests: written, searched and merged so that the cost of a commit does not grow with the table.

Ten manifests of similar size are merged into one, as in a log-structured merge tree: each entry is written about four
times, however large the table. Merged manifests are sorted by partition, so that engines, and later removals, can skip
most of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from components.lib.lake.iceberg.manifest_encoder import DeleteManifestEntryWriter, ManifestEntryWriter
from components.lib.lake.iceberg.manifest_lists import FORMAT as FORMAT
from components.lib.lake.iceberg.manifest_lists import ManifestLists
from components.lib.lake.iceberg.schema_updates import schema_of

MERGE_COUNT = 10
"""Manifests of one size class that are merged into one of the next."""

MAX_FILES = 1_000
"""Per manifest, because the removal of one file rewrites its manifest. A half-full one is not merged again."""

_LARGE = 2_000_000
"""With more files than this, manifests have ten times `MAX_FILES`, so that the manifest list stays short."""

_OWN_MANIFEST_FILES = 100
"""Files of one commit and one partition that get a manifest of their own."""

_CODEC: Final = "deflate"
_PARTITIONS_COMPARED = 200
"""With more partitions, comparing bounds costs more than it saves."""


class SnapshotManifestWriter:
    """Writes the manifests of one snapshot, and remembers their paths, so that a failed commit can be cleaned up.

    ``most`` files are in a manifest (`most_files`).
    """

    def __init__(
        self, table: Table, schema: Schema, snapshot_id: int, sequence_number: int, most: int = MAX_FILES
    ) -> None:
        self._io: FileIO = table.io
        self._locations: LocationProvider = table.location_provider()
        self._schema = schema
        self._metadata = table.metadata
        self.snapshot_id = snapshot_id
        self.sequence_number = sequence_number
        self.most = most
        self._id = uuid4()
        self.written: list[str] = []

    def add(
        self, spec: PartitionSpec, files: Sequence[DataFile], content: ManifestContent = ManifestContent.DATA
    ) -> list[ManifestFile]:
        """All files are data files, or all are delete files."""
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self.snapshot_id,
                sequence_number=None,  # inherited from the manifest, as the specification requires
                file_sequence_number=None,
                data_file=file,
            )
            for file in files
        ]
        parts = _cut(_ordered(spec, entries), least=_OWN_MANIFEST_FILES, most=self.most)
        return [self._write(spec, part, content) for part in parts]

    def remove(
        self, spec: PartitionSpec, manifest: ManifestFile, paths: set[str]
    ) -> tuple[ManifestFile, dict[str, DataFile]]:
        """Returns the manifest without the files at `paths`, and those of them that it had; the same manifest if none.

        A manifest of delete files stays one.
        """
        entries = manifest.fetch_manifest_entry(self._io)
        found = {file.file_path: file for entry in entries if (file := entry.data_file).file_path in paths}
        if not found:
            return manifest, found
        kept = [self._changed(entry, removed=entry.data_file.file_path in found) for entry in entries]
        return self._write(spec, kept, manifest.content), found

    def merge(self, spec: PartitionSpec, manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
        entries = [
            self._changed(entry, removed=False)
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(self._io)
        ]
        return [self._write(spec, part) for part in _cut(_ordered(spec, entries), least=self.most, most=self.most)]

    def write_list(self, lists: ManifestLists, manifests: Sequence[ManifestFile], parent: int | None) -> str:
        path = self._locations.new_metadata_location(f"snap-{self.snapshot_id}-0-{self._id}.avro")
        self.written.append(path)
        lists.write(self._io, path, manifests, self.snapshot_id, parent, self.sequence_number)
        return path

    def discard(self) -> None:
        """Deletes as far as possible: what is left is small and unreferenced."""
        for path in self.written:
            with suppress(OSError):
                self._io.delete(path)

    def _changed(self, entry: ManifestEntry, *, removed: bool) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self.snapshot_id if removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _write(
        self, spec: PartitionSpec, entries: Sequence[ManifestEntry], content: ManifestContent = ManifestContent.DATA
    ) -> ManifestFile:
        path = self._locations.new_metadata_location(f"{self._id}-m{len(self.written)}.avro")
        self.written.append(path)
        output = self._io.new_output(path)
        schema = schema_of(self._metadata, spec, self._schema)
        kind = ManifestEntryWriter if content == ManifestContent.DATA else DeleteManifestEntryWriter
        with kind(spec, schema, output, self.snapshot_id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        # PyIceberg sets it when it reads the list; the next snapshot of the same commit uses this object.
        manifest.sequence_number = self.sequence_number
        if manifest.min_sequence_number < 0:
            manifest.min_sequence_number = self.sequence_number
        return manifest


def _ordered(spec: PartitionSpec, entries: list[ManifestEntry]) -> list[ManifestEntry]:
    if not spec.is_unpartitioned():
        entries.sort(key=lambda entry: _order(entry.data_file.partition))
    return entries


def most_files(live: int) -> int:
    """Returns how many files a manifest of a table with so many live files may have."""
    return MAX_FILES if live <= _LARGE else 10 * MAX_FILES


def _cut(entries: Sequence[ManifestEntry], *, least: int, most: int = MAX_FILES) -> Iterator[Sequence[ManifestEntry]]:
    """Cuts into parts of at most ``most``, from ``least`` on at partition boundaries if possible: a compaction of
    one partition then does not rewrite entries of others.
    """
    start = 0
    for place in range(1, len(entries)):
        size = place - start
        if size >= most or (
            size >= least and entries[place].data_file.partition != entries[place - 1].data_file.partition
        ):
            yield entries[start:place]
            start = place
    if entries:
        yield entries[start:]


def is_live(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def live_count(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def merge_groups(manifests: Iterable[ManifestFile], most: int) -> Iterator[tuple[int, list[ManifestFile]]]:
    """Yields the groups of manifests to merge, with their spec ids. ``most`` files are in a manifest.

    A group has at most ten manifests of 1,000 files and more, because a commit waits for it.
    """
    tiers: defaultdict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and (count := live_count(manifest)) < most // 2:
            tiers[manifest.partition_spec_id, len(str(count))].append(manifest)
    for (spec_id, digits), group in tiers.items():
        if len(group) >= MERGE_COUNT:
            yield spec_id, group if digits < len(str(MAX_FILES)) else group[:MERGE_COUNT]


def may_contain(manifest: ManifestFile, partitions: set[Record], kinds: Sequence[PrimitiveType]) -> bool:
    """Returns False only if the bounds in the manifest list exclude all of the partitions."""
    if not kinds or not manifest.partitions or len(partitions) > _PARTITIONS_COMPARED:
        return True
    bounds = [
        (
            None if summary.lower_bound is None else from_bytes(kind, summary.lower_bound),
            None if summary.upper_bound is None else from_bytes(kind, summary.upper_bound),
            summary.contains_null,
        )
        for summary, kind in zip(manifest.partitions, kinds, strict=True)
    ]
    return any(all(_within(partition[place], *bound) for place, bound in enumerate(bounds)) for partition in partitions)


def _within(value: object, lower: object, upper: object, contains_null: bool) -> bool:
    if value is None:
        return contains_null
    if lower is None or upper is None:
        return False  # only nulls
    try:
        return bool(lower <= value <= upper)  # type: ignore[operator]  # else TypeError
    except TypeError:
        return True


def _order(partition: Record) -> tuple[tuple[bool, object], ...]:
    values = [partition[place] for place in range(len(partition))]
    return tuple((value is not None, value if value is not None else 0) for value in values)
