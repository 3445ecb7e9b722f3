"""Manifest lists: written at a cost that depends on what a commit changes, not on how many manifests the table has.

A list names every manifest, a thousand for a million files, and a commit changes a few of them. A list is written as
many Avro blocks, and a block whose manifests were in the previous list too is written again as it was: encoded and
compressed. Where a block ends depends on its last manifest alone, so what is added or removed changes one block or two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile

from components.lib.lake.iceberg.manifest_encoder import encoders
from components.lib.lake.iceberg.pyiceberg_internals import EncodedAvroFile, record_values

FORMAT: Final = 2

_CODEC: Final = "deflate"
_SCHEMA = MANIFEST_LIST_FILE_SCHEMAS[FORMAT]
_BLOCK = 32
"""Manifests per block on average: a power of two."""

Paths: TypeAlias = tuple[str, ...]


class ManifestLists:
    """Writes the manifest lists of one table. Keeps the blocks of the last one, about 100 bytes per manifest."""

    def __init__(self) -> None:
        self._blocks: dict[Paths, bytes] = {}

    def write(
        self,
        io: FileIO,
        path: str,
        manifests: Iterable[ManifestFile],
        snapshot_id: int,
        parent: int | None,
        sequence: int,
    ) -> None:
        """Writes what PyIceberg's `write_manifest_list` would, in other blocks. Manifests must have their sequence
        numbers.
        """
        meta = {
            "snapshot-id": str(snapshot_id),
            "parent-snapshot-id": "null" if parent is None else str(parent),
            "sequence-number": str(sequence),
            "format-version": str(FORMAT),
            "avro.codec": _CODEC,
        }
        file = EncodedAvroFile[ManifestFile](io.new_output(path), _SCHEMA, "manifest_file", metadata=meta)
        written: dict[Paths, bytes] = {}
        with file:
            for paths, block in _blocks(manifests):
                content = self._blocks.get(paths) or file.compressed(_encoded(block))
                file.write_compressed_block(len(block), content)
                written[paths] = content
        self._blocks = written


def _blocks(manifests: Iterable[ManifestFile]) -> Iterator[tuple[Paths, list[ManifestFile]]]:
    """The hash of a path is random per process, as is what is kept of the last list."""
    paths: list[str] = []
    block: list[ManifestFile] = []
    for manifest in manifests:
        path = manifest.manifest_path
        paths.append(path)
        block.append(manifest)
        if not hash(path) % _BLOCK:
            yield tuple(paths), block
            paths, block = [], []
    if block:
        yield tuple(paths), block


def _encoded(manifests: Iterable[ManifestFile]) -> bytes:
    parts: list[bytes] = []
    for manifest in manifests:
        # A record has the fields of the newest format, which begin with those of this one.
        for put, value in zip(_PUTS, record_values(manifest), strict=False):
            put(parts, value)
    return b"".join(parts)


_PUTS = encoders(_SCHEMA.as_struct())


class DroppedManifests(msgspec.Struct, frozen=True):
    """The manifests that `parent` has and its successor does not, with the sequence numbers of the snapshots that
    added them.
    """

    parent: int
    manifests: tuple[tuple[str, int], ...]

    @classmethod
    def between(cls, parent: int, before: Sequence[ManifestFile], after: Iterable[ManifestFile]) -> DroppedManifests:
        kept = {manifest.manifest_path for manifest in after}
        return cls(
            parent,
            tuple((found.manifest_path, found.sequence_number) for found in before if found.manifest_path not in kept),
        )


class KnownManifests:
    """What this process knows about a table's manifests from its own commits, so that it need not read lists again."""

    def __init__(self) -> None:
        self.lists = ManifestLists()
        self.dropped: dict[int, DroppedManifests] = {}  # by the successor
        self._snapshot_id: int | None = None
        self._manifests: list[ManifestFile] = []

    def of(self, snapshot_id: int | None) -> list[ManifestFile] | None:
        """Returns the manifests of this snapshot, if it is the one of the last commit."""
        return None if snapshot_id is None or snapshot_id != self._snapshot_id else self._manifests

    def committed(
        self,
        snapshot_id: int,
        manifests: list[ManifestFile],
        dropped: Mapping[int, DroppedManifests],
        retained: Iterable[int],
    ) -> None:
        """Call it after a commit. ``retained`` are the snapshots that the table had before it and still has."""
        self._snapshot_id, self._manifests = snapshot_id, manifests
        if dropped:
            kept = {wanted: self.dropped[wanted] for wanted in retained if wanted in self.dropped}
            self.dropped = {**kept, **dropped}
