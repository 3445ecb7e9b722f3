"""Manifests: lists of data files, written, searched and merged so that a commit's cost does not grow with the table.

Manifests of about the same number of files are merged, ten into one, as a log-structured tree would: each file's entry
is written some four times, however large the table. Merged ones are in the order of the partitions, so
that engines, and a later removal, can skip most of them.
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
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from components.lib.lake.iceberg.manifest_encoder import ManifestEntryWriter
from components.lib.lake.iceberg.schema_updates import schema_of

FORMAT: Final = 2
MERGE_COUNT = 10
"""Manifests of one size that are merged into one of the next."""

MOST_FILES = 1_000
"""In one manifest: who removes one file writes all of them anew. One that is half full is not merged again."""

_WORTH_A_MANIFEST = 100
"""Files of one commit and one partition that get one of their own."""

_CODEC: Final = "deflate"
_PARTITIONS_COMPARED = 200
"""With more than that to look for, comparing bounds costs more than it saves."""


class SnapshotManifestWriter:
    """Writes for one snapshot, and remembers what it wrote, so that a failed commit can be cleaned up."""

    def __init__(self, table: Table, schema: Schema, snapshot_id: int, sequence_number: int) -> None:
        self._io: FileIO = table.io
        self._locations: LocationProvider = table.location_provider()
        self._schema = schema
        self._metadata = table.metadata
        self.snapshot_id = snapshot_id
        self.sequence_number = sequence_number
        self._id = uuid4()
        self.written: list[str] = []

    def add(self, spec: PartitionSpec, files: Sequence[DataFile]) -> list[ManifestFile]:
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self.snapshot_id,
                sequence_number=None,  # inherited from the manifest, as the specification wants it
                file_sequence_number=None,
                data_file=file,
            )
            for file in files
        ]
        return [self._write(spec, part) for part in _cut(_ordered(spec, entries), least=_WORTH_A_MANIFEST)]

    def remove(self, spec: PartitionSpec, manifest: ManifestFile, paths: set[str]) -> tuple[ManifestFile, set[str]]:
        """`manifest` without the files at `paths`, and which of them it held. The manifest itself if none."""
        entries = manifest.fetch_manifest_entry(self._io)
        found = {entry.data_file.file_path for entry in entries} & paths
        if not found:
            return manifest, found
        kept = [self._changed(entry, removed=entry.data_file.file_path in found) for entry in entries]
        return self._write(spec, kept), found

    def merge(self, spec: PartitionSpec, manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
        entries = [
            self._changed(entry, removed=False)
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(self._io)
        ]
        return [self._write(spec, part) for part in _cut(_ordered(spec, entries), least=MOST_FILES)]

    def write_list(self, manifests: Sequence[ManifestFile], parent: int | None) -> str:
        path = self._locations.new_metadata_location(f"snap-{self.snapshot_id}-0-{self._id}.avro")
        self.written.append(path)
        with write_manifest_list(
            FORMAT, self._io.new_output(path), self.snapshot_id, parent, self.sequence_number, _CODEC
        ) as writer:
            writer.add_manifests(list(manifests))
        return path

    def discard(self) -> None:
        """As far as possible: what stays is small, and nothing refers to it."""
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

    def _write(self, spec: PartitionSpec, entries: Sequence[ManifestEntry]) -> ManifestFile:
        path = self._locations.new_metadata_location(f"{self._id}-m{len(self.written)}.avro")
        self.written.append(path)
        output = self._io.new_output(path)
        schema = schema_of(self._metadata, spec, self._schema)
        with ManifestEntryWriter(spec, schema, output, self.snapshot_id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        # Known here, though PyIceberg fills it in when it reads the list again: the next snapshot of the same commit
        # works on this very object.
        manifest.sequence_number = self.sequence_number
        if manifest.min_sequence_number < 0:
            manifest.min_sequence_number = self.sequence_number
        return manifest


def _ordered(spec: PartitionSpec, entries: list[ManifestEntry]) -> list[ManifestEntry]:
    if not spec.is_unpartitioned():
        entries.sort(key=lambda entry: _order(entry.data_file.partition))
    return entries


def _cut(entries: Sequence[ManifestEntry], *, least: int) -> Iterator[Sequence[ManifestEntry]]:
    """At most `MOST_FILES` each, and from ``least`` on only of whole partitions, as far as possible: whoever compacts
    one partition need not write the others' entries anew.
    """
    start = 0
    for place in range(1, len(entries)):
        size = place - start
        if size >= MOST_FILES or (
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


def merge_groups(manifests: Iterable[ManifestFile]) -> Iterator[tuple[int, list[ManifestFile]]]:
    """Spec id and manifests, of those that are to be merged now."""
    tiers: defaultdict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and live_count(manifest) < MOST_FILES // 2:
            tiers[manifest.partition_spec_id, len(str(live_count(manifest)))].append(manifest)
    for (spec_id, _), group in tiers.items():
        if len(group) >= MERGE_COUNT:
            yield spec_id, group


def may_hold(manifest: ManifestFile, partitions: set[Record], kinds: Sequence[PrimitiveType]) -> bool:
    """False only if none of the partitions can be in it, by the bounds that the manifest list keeps."""
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
        return False  # nothing but nulls
    try:
        return bool(lower <= value <= upper)  # type: ignore[operator]  # else TypeError
    except TypeError:
        return True


def _order(partition: Record) -> tuple[tuple[bool, object], ...]:
    values = [partition[place] for place in range(len(partition))]
    return tuple((value is not None, value if value is not None else 0) for value in values)
