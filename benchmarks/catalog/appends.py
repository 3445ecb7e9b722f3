"""Appends as an engine commits them: manifests that are written before anything is measured, and the requests.

Two catalogs get the same requests with the same manifests, so that only the catalogs differ. As Iceberg's Java library
does by default, every hundredth append merges the manifests of the snapshot into one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)

from components.lib.lake.iceberg.data_files import DataFiles
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import TableFile

_FORMAT: Final = 2
_MERGE_AT = 100  # commit.manifest.min-count-to-merge
_DEFLATE: Any = "deflate"  # a literal of PyIceberg's own


class Append(msgspec.Struct, frozen=True):
    """One snapshot that adds files."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    manifest_list: str
    files: int
    rows: int

    def request(self, table_uuid: str, schema_id: int = 0) -> bytes:
        """Returns the body of the commit."""
        summary = {
            "operation": "append",
            "added-data-files": str(self.files),
            "added-records": str(self.rows),
            "total-data-files": str(self.files * self.sequence_number),
            "total-records": str(self.rows * self.sequence_number),
        }
        snapshot = {
            "snapshot-id": self.snapshot_id,
            "sequence-number": self.sequence_number,
            "timestamp-ms": time.time_ns() // 1_000_000 + self.sequence_number,
            "manifest-list": self.manifest_list,
            "summary": summary,
            "schema-id": schema_id,
        }
        if self.parent_id is not None:
            snapshot["parent-snapshot-id"] = self.parent_id
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self.snapshot_id}
        body = {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": table_uuid},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.parent_id},
            ],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
        }
        return msgspec.json.encode(body)


class Appends:
    """Writes the manifests of one table's appends."""

    def __init__(self, location: Path, schema: TableSchema, first_snapshot_id: int = 1_000_000) -> None:
        self._directory = location / "metadata"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._data_files = DataFiles(schema)
        self._io = PyArrowFileIO()
        self._first = first_snapshot_id
        self._number = 0
        self._manifests: list[ManifestFile] = []
        self._merged: list[ManifestEntry] = []

    def add(self, files: Sequence[TableFile]) -> Append:
        self._number += 1
        number, snapshot_id = self._number, self._first + self._number
        entries = [self._entry(snapshot_id, self._data_files.make(file, 0, self._io)) for file in files]
        if len(self._manifests) + 1 == _MERGE_AT:
            manifests = [self._manifest(snapshot_id, entries, self._merged)]
        else:
            manifests = [self._manifest(snapshot_id, entries), *self._manifests]
        parent = snapshot_id - 1 if number > 1 else None
        path = (self._directory / f"snap-{snapshot_id}.avro").as_uri()
        with write_manifest_list(_FORMAT, self._io.new_output(path), snapshot_id, parent, number, _DEFLATE) as listed:
            self._manifests = [listed.prepare_manifest(manifest) for manifest in manifests]
            listed.add_manifests(self._manifests)
        for entry in entries:
            entry.sequence_number = entry.file_sequence_number = number
        self._merged += entries
        return Append(snapshot_id, parent, number, path, len(files), sum(file.row_count for file in files))

    def _manifest(
        self, snapshot_id: int, added: Sequence[ManifestEntry], existing: Sequence[ManifestEntry] = ()
    ) -> ManifestFile:
        path = (self._directory / f"manifest-{snapshot_id}.avro").as_uri()
        output = self._io.new_output(path)
        schema = self._schema
        with write_manifest(_FORMAT, schema.partition, schema.iceberg, output, snapshot_id, _DEFLATE) as writer:
            for entry in added:
                writer.add(entry)
            for entry in existing:
                writer.existing(entry)
        return writer.to_manifest_file()

    def _entry(self, snapshot_id: int, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
