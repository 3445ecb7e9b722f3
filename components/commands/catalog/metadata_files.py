"""The metadata files of tables: a file never changes, so it is read once, and sent as it is."""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from typing import Any

import msgspec

from components.commands.catalog.errors import BadRequest, NoSuchFile, Unavailable
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError

_GZIP = (".gz.metadata.json", ".metadata.json.gz")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_snapshot_id = msgspec.json.Decoder(dict[str, Any]).decode

_MAX_PARSED = 64
"""More of them are mostly former versions. Without this limit commits were slower; see docs/parts/catalog.md."""

_PARSED_FACTOR = 3
"""Bytes of memory of a parsed file per byte of JSON, about: each snapshot keeps its JSON, and becomes objects."""

_MAX_BYTES = 512 * 1024 * 1024
"""Of one file. The largest tables have a few tens of megabytes; a small file can be unzipped to any size."""

_QUICK_BYTES = 32 * 1024
"""Smaller files are parsed in the event loop: that takes less than a thread's start."""


class MetadataFiles:
    """Keeps at most `max_bytes` of files, and as much of parsed ones; the least recently used go first."""

    def __init__(self, objects: Objects, max_bytes: int) -> None:
        self._objects = objects
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._parsed: OrderedDict[str, tuple[IcebergMetadata, int]] = OrderedDict()
        self._parsed_bytes = 0
        self._bytes = 0

    async def read(self, location: str) -> bytes:
        """Returns the JSON at this location. Raises NoSuchFile if it is gone, Unavailable if storage fails."""
        found = self._kept.get(location)
        if found is not None:
            self._kept.move_to_end(location)
            return found
        try:
            data = await self._objects.get(location)
        except ObjectMissing as error:
            raise NoSuchFile(f"Failed to open input stream for file: {location}: it does not exist") from error
        except StorageError as error:
            raise Unavailable(f"the metadata file {location} can't be read: {error}") from error
        if location.endswith(_GZIP):
            data = _unzipped(location, data)
        self.keep(location, data)
        return data

    async def require_reasonable(self, location: str) -> None:
        """Raises BadRequest if the file that a client names is too large to be metadata."""
        try:
            size = await self._objects.size(location)
        except StorageError as error:
            raise Unavailable(f"the metadata file {location} can't be read: {error}") from error
        if size is not None and size > _MAX_BYTES:
            raise BadRequest(f"{location} has {size} bytes, too many for metadata of a table")

    async def parsed(self, location: str) -> IcebergMetadata:
        """Returns the metadata at this location. Raises as `read` does, and `InvalidCommit` if it is not metadata."""
        found = self._parsed.get(location)
        if found is not None:
            self._parsed.move_to_end(location)
            return found[0]
        data = await self.read(location)
        if len(data) <= _QUICK_BYTES:
            parsed = IcebergMetadata.parse(data)
        else:
            parsed = await asyncio.to_thread(IcebergMetadata.parse, data)
        self._keep_parsed(location, parsed, len(data))
        return parsed

    def keep(self, location: str, data: bytes, parsed: IcebergMetadata | None = None) -> None:
        """Keeps a file that was just read or written."""
        if location in self._kept or len(data) > self._max_bytes:
            return
        self._kept[location] = data
        self._bytes += len(data)
        while self._bytes > self._max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)
        if parsed is not None:
            self._keep_parsed(location, parsed, len(data))

    def _keep_parsed(self, location: str, parsed: IcebergMetadata, size: int) -> None:
        weight = _PARSED_FACTOR * size
        if location in self._parsed or weight > self._max_bytes:
            return
        self._parsed[location] = parsed, weight
        self._parsed_bytes += weight
        while self._parsed_bytes > self._max_bytes or len(self._parsed) > _MAX_PARSED:
            _, (_, gone) = self._parsed.popitem(last=False)
            self._parsed_bytes -= gone


def _unzipped(location: str, data: bytes) -> bytes:
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = unzip.decompress(data, _MAX_BYTES)
    except zlib.error as error:
        raise BadRequest(f"{location} is not a file of gzip: {error}") from error
    if unzip.unconsumed_tail:
        raise BadRequest(f"{location} has more than {_MAX_BYTES} bytes, too many for metadata of a table")
    return found


def only_referenced_snapshots(metadata: bytes) -> bytes:
    """Returns the metadata without snapshots that no branch or tag names; clients ask for it to load a table sooner."""
    fields = _decode(metadata)
    if "snapshots" not in fields:
        return metadata
    referenced = {ref["snapshot-id"] for ref in msgspec.json.decode(fields.get("refs", b"{}")).values()}
    snapshots = msgspec.json.decode(fields["snapshots"], type=list[msgspec.Raw])
    kept = [snapshot for snapshot in snapshots if _snapshot_id(snapshot)["snapshot-id"] in referenced]
    fields["snapshots"] = msgspec.Raw(msgspec.json.encode(kept))
    return msgspec.json.encode(fields)
