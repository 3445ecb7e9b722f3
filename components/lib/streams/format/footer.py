"""The footer of an object, which lists its segments, to read and salvage it without the registry.

Readers do not need it: the rows of the registry say the same and are authoritative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Annotated, TypeAlias

import msgspec
from crc32c import crc32c

from components.lib.streams.errors import Corrupt, NotASegment
from components.lib.streams.format.block import MAGIC, BlockHeader, read_header
from components.lib.streams.format.index import BlockIndex

END_MAGIC = b"ASOB"
VERSION = 1

_LENGTHS = Struct("<IHH")
_CHECKSUM = Struct("<I")
TRAILER_SIZE = _LENGTHS.size + _CHECKSUM.size + len(END_MAGIC)


class SegmentEntry(msgspec.Struct, frozen=True):
    """`base_offset` is the offset that the writer expected; the row in the registry is authoritative."""

    topic: str
    partition_id: int
    base_offset: int
    byte_offset: int
    blocks: list[tuple[int, int]]  # bytes and records

    @property
    def index(self) -> BlockIndex:
        return BlockIndex([size for size, _ in self.blocks], [records for _, records in self.blocks])


_Place: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[tuple[str, _Place, _Place, _Place, list[tuple[_Count, _Count]]]])


def encode_footer(entries: Sequence[SegmentEntry]) -> bytes:
    body = _ENCODER.encode([msgspec.structs.astuple(entry) for entry in entries])
    checked = body + _LENGTHS.pack(len(body), VERSION, 0)
    return checked + _CHECKSUM.pack(crc32c(checked)) + END_MAGIC


def footer_size(tail: bytes, *, uri: str = "", end: int | None = None) -> int:
    """Returns the size of the footer, given at least the last `TRAILER_SIZE` bytes of the object."""
    start = 0 if end is None else end - len(tail)
    if len(tail) < TRAILER_SIZE or not tail.endswith(END_MAGIC):
        raise NotASegment("does not end like a segment object", uri=uri, start=start, length=len(tail))
    length, version, _ = _LENGTHS.unpack_from(tail, len(tail) - TRAILER_SIZE)
    if version != VERSION:
        why = f"its footer has version {version}, this is version {VERSION}: upgrade Astha"
        raise NotASegment(why, uri=uri, start=start, length=len(tail))
    return int(length) + TRAILER_SIZE


def read_footer(tail: bytes, *, uri: str = "", end: int | None = None) -> list[SegmentEntry]:
    """Reads the footer. `tail` is the end of the object with at least the whole footer; `end` is the object's size."""
    size = footer_size(tail, uri=uri, end=end)
    start = 0 if end is None else end - len(tail)

    def corrupt(why: str) -> Corrupt:
        return Corrupt(why, uri=uri, start=start, length=len(tail))

    if end is not None and size > end:
        raise corrupt(f"claims a footer of {size:,} bytes, the object has {end:,}")
    if size > len(tail):
        raise corrupt(f"has only the last {len(tail):,} of the footer's {size:,} bytes")
    checked = tail[len(tail) - size : len(tail) - _CHECKSUM.size - len(END_MAGIC)]
    if _CHECKSUM.unpack_from(tail, len(tail) - _CHECKSUM.size - len(END_MAGIC))[0] != crc32c(checked):
        raise corrupt("the footer has a wrong checksum")
    try:
        entries = [SegmentEntry(*entry) for entry in _DECODER.decode(checked[: -_LENGTHS.size])]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"the footer can't be read: {error}") from error
    for entry in entries:
        if end is not None and entry.byte_offset + entry.index.size > end - size:
            where = f"{entry.topic}/{entry.partition_id} at byte {entry.byte_offset:,}"
            raise corrupt(f"the footer lists a segment of {where} that does not end before the footer begins")
    return entries


def scan(data: bytes, *, uri: str = "") -> Iterator[tuple[int, BlockHeader]]:
    """Yields the blocks of an object without a footer, with their positions. Skips damaged bytes."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        try:
            header = read_header(data, at, uri=uri)
        except Corrupt:
            at += 1
            continue
        yield at, header
        at += header.size
