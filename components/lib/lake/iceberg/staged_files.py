"""Data files that one snapshot will add: their manifests are written in portions before the snapshot is committed, so
that memory is bounded by one portion, however many files there are, and readers still see all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.manifest import ManifestFile

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg.manifests import SnapshotManifestWriter
from registry.models import TableFile


class StagedFiles:
    """`specs` are the partition specs of the manifests, by schema version: a commit must find the same ones."""

    def __init__(
        self,
        writer: SnapshotManifestWriter,
        write: Callable[[Sequence[TableFile]], list[ManifestFile]],
        specs: Mapping[int, int],
    ) -> None:
        self._writer = writer
        self._write = write
        self._manifests: list[ManifestFile] = []
        self.specs = dict(specs)
        self.snapshot_id = writer.snapshot_id
        self.digest = Digest()
        self.rows = self.size_bytes = 0
        self.partitions: set[str] = set()
        self.in_doubt = False
        """Whether a commit may have added them: then they must not be discarded."""

    def add(self, files: Sequence[TableFile]) -> None:
        self._manifests += self._write(files)
        for file in files:
            self.digest.add(LiveFile.of(file))
            self.rows += file.row_count
            self.size_bytes += file.file_size
            self.partitions.add(file.partition_path)

    def manifests(self, sequence_number: int) -> list[ManifestFile]:
        """Returns the manifests for a snapshot with this sequence number. Their entries inherit it."""
        for manifest in self._manifests:
            manifest.sequence_number = manifest.min_sequence_number = sequence_number
        return list(self._manifests)

    def discard(self) -> None:
        """Deletes the manifests, unless a commit may have added them."""
        if not self.in_doubt:
            self._writer.discard()
