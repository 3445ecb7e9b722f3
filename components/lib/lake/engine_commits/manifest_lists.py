"""Manifest lists of snapshots, each decoded only as far as it differs from the one before it.

An engine that appends writes its new manifests in front of those of the previous list. A list of a thousand manifests
takes PyIceberg tens of milliseconds; here the common end is found by comparing bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from threading import Lock
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list

from components.lib.lake.engine_commits.avro_records import AvroRecords, UnknownCodec, read_records, record_decoder

_MAX_MANIFESTS = 50_000
"""In memory, of all lists together; each takes about a kilobyte."""

_SAMPLE = 256
"""Bytes that are compared before all."""

_PATH, _SPEC_ID, _SEQUENCE, _SNAPSHOT, _ADDED, _EXISTING = 500, 502, 515, 503, 504, 505  # field ids


class ListedManifest(msgspec.Struct, frozen=True, gc=False):
    """The fields that are needed to decide whether to read a manifest, and that its entries inherit."""

    manifest_path: str
    partition_spec_id: int
    sequence_number: int
    added_snapshot_id: int | None
    is_live: bool


class ManifestLists:
    """Manifest lists, which never change, by location: the new list of a commit is the old one of the next.

    Safe for use by several threads.
    """

    def __init__(self, max_manifests: int = _MAX_MANIFESTS) -> None:
        self._max = max_manifests
        self._lock = Lock()
        self._kept: OrderedDict[str, _DecodedList] = OrderedDict()
        self._size = 0

    def read(self, io: FileIO, location: str, previous: str | None = None) -> Mapping[str, ListedManifest]:
        """Returns the manifests by their paths. ``previous`` is the location of a list with a common end, if any.

        Raises OSError for the storage, ValueError and similar errors for what is not a manifest list.
        """
        with self._lock:
            found = self._kept.get(location)
            if found is not None:
                self._kept.move_to_end(location)
                return found.manifests
            base = None if previous is None else self._kept.get(previous)
        found = _read(io, location, base)
        with self._lock:
            if location not in self._kept:
                self._kept[location] = found
                self._size += len(found.manifests) + 1
            while self._size > self._max and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped.manifests) + 1
        return found.manifests


class _DecodedList(msgspec.Struct, frozen=True):
    manifests: dict[str, ListedManifest]
    records: AvroRecords | None = None
    ends: dict[int, int] = {}
    """The number of records in the last bytes, by the number of these bytes."""


def _read(io: FileIO, location: str, base: _DecodedList | None) -> _DecodedList:
    with io.new_input(location).open() as file:
        data = file.read()
    try:
        return _decode(read_records(data), base)
    except UnknownCodec:
        return _DecodedList(
            {
                found.manifest_path: ListedManifest(
                    found.manifest_path,
                    found.partition_spec_id,
                    found.sequence_number,
                    found.added_snapshot_id,
                    found.has_added_files() or found.has_existing_files(),
                )
                for found in read_manifest_list(io.new_input(location))
            }
        )


def _decode(records: AvroRecords, base: _DecodedList | None) -> _DecodedList:
    decode = record_decoder(records.schema)
    content, size = records.content, len(records.content)
    found: dict[str, ListedManifest] = {}
    starts: list[int] = []
    ends: dict[int, int] = {}
    common = 0
    offset = 0
    while offset < size:
        common = 0 if base is None else _common_end(records, offset, base)
        if base is not None and common:
            found |= _last(base.manifests, common)
            ends = {rest: count for rest, count in base.ends.items() if count <= common}
            break
        starts.append(offset)
        values, offset = decode(content, offset)
        manifest = _manifest(values)
        found[manifest.manifest_path] = manifest
    if len(found) != records.count or len(starts) + common != records.count:
        raise ValueError(f"{records.count} manifests are announced, {len(found)} different ones are listed")
    ends |= {size - start: records.count - place for place, start in enumerate(starts)}
    return _DecodedList(found, records, ends)


def _common_end(records: AvroRecords, offset: int, base: _DecodedList) -> int:
    """Returns how many records the base has from the offset on, if it ends with the same bytes; else 0."""
    old, rest = base.records, len(records.content) - offset
    count = base.ends.get(rest, 0)
    if old is None or not count or old.schema != records.schema:
        return 0
    start = len(old.content) - rest
    if old.content[start : start + _SAMPLE] != records.content[offset : offset + _SAMPLE]:
        return 0
    return count if records.content.endswith(old.content[start:]) else 0


def _last(manifests: dict[str, ListedManifest], count: int) -> dict[str, ListedManifest]:
    return manifests if count == len(manifests) else dict(islice(manifests.items(), len(manifests) - count, None))


def _manifest(values: Mapping[int | str, Any]) -> ListedManifest:
    """Version 1 has no sequence numbers, and may have no counts."""
    added, existing = values.get(_ADDED), values.get(_EXISTING)
    return ListedManifest(
        values[_PATH],
        values[_SPEC_ID],
        values.get(_SEQUENCE) or 0,
        values.get(_SNAPSHOT),
        added is None or existing is None or added + existing > 0,
    )
