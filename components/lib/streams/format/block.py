"""Blocks: a header of 64 bytes and a body of columns, compressed with LZ4 unless that makes it larger.

All numbers are little-endian. Every column begins at a multiple of 8 in the body, so that Arrow and memoryviews can use
it in place. The header has its own checksum: a block that only moves inside its segment gets a new header and keeps its
body.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from struct import Struct
from sys import byteorder
from typing import Final

import lz4.block
import msgspec
from crc32c import crc32c

from components.lib.streams.errors import Corrupt, NotASegment, RecordTooLarge
from components.lib.streams.format.batch import (
    HEADERS,
    KEYS,
    NULL_HEADERS,
    NULL_KEYS,
    NULL_VALUES,
    Body,
    RecordBatch,
)
from components.lib.streams.format.columns import RecordColumns, present

MAGIC: Final = b"ASBK"
VERSION: Final = 1

STORED: Final = 0  # codecs
LZ4: Final = 1

if byteorder != "little":
    raise ImportError("the segment store needs a little-endian machine: blocks are used in place")

_FIELDS = Struct("<4sBBHIIQqqIIIQ")
_CHECKSUM = Struct("<I")
HEADER_SIZE: Final = _FIELDS.size + _CHECKSUM.size

MAX_BODY_BYTES: Final = 256 << 20
"""The largest body before compression. Writers refuse more, and readers allocate no more, whatever a header claims."""

_LZ4_RATIO = 255  # the limit of LZ4's format: a byte adds at most 255 to a match's length
_OFFSETS_END = 1 << 63
_FLAGS = frozenset(
    keys | values | headers
    for keys in (0, KEYS, KEYS | NULL_KEYS)
    for values in (0, NULL_VALUES)
    for headers in (0, HEADERS, HEADERS | NULL_HEADERS)
)
_WORTH_COMPRESSING = 128
_PADDING = tuple(bytes(count) for count in (0, 7, 6, 5, 4, 3, 2, 1))  # by length modulo 8


class BlockHeader(msgspec.Struct, frozen=True, gc=False):
    """`first` is the offset of the block's first record, relative to the segment's base."""

    codec: int
    flags: int
    records: int
    headers: int
    first: int
    min_timestamp: int
    max_timestamp: int
    stored_size: int
    raw_size: int
    checksum: int
    tag: int

    @property
    def size(self) -> int:
        """The size of the whole block."""
        return HEADER_SIZE + self.stored_size

    def encode(self) -> bytes:
        fields = _FIELDS.pack(MAGIC, VERSION, *msgspec.structs.astuple(self))
        return fields + _CHECKSUM.pack(crc32c(fields))


def partition_tag(topic: str, partition_id: int) -> int:
    """Returns a tag by which a reader detects blocks of another partition."""
    return int.from_bytes(hashlib.blake2b(f"{topic}/{partition_id}".encode(), digest_size=8).digest(), "little")


def encode_block(columns: RecordColumns, *, first: int = 0, tag: int = 0) -> bytes:
    """Encodes at least one record. Raises RecordTooLarge beyond `MAX_BODY_BYTES`."""
    flags = 0
    parts: list[bytes | array[int]] = [columns.timestamps]
    if columns.keys is not None:
        flags |= KEYS
        if _add_column(parts, columns.keys):
            flags |= NULL_KEYS
    if _add_column(parts, columns.values):
        flags |= NULL_VALUES
    headers = 0
    if columns.headers is not None:
        flags |= HEADERS
        _add_offsets(parts, map(len, columns.headers))
        flat = list(chain.from_iterable(columns.headers))
        headers = len(flat)
        _add_column(parts, [name.encode() for name, _ in flat])
        if _add_column(parts, [value for _, value in flat]):
            flags |= NULL_HEADERS
    raw = b"".join(parts)
    if len(raw) > MAX_BODY_BYTES:
        raise RecordTooLarge(f"a block of {len(raw):,} bytes exceeds {MAX_BODY_BYTES:,}: append fewer at once")
    codec, stored = STORED, raw
    if len(raw) >= _WORTH_COMPRESSING:
        packed = lz4.block.compress(raw, store_size=False)
        if len(packed) < len(raw):
            codec, stored = LZ4, packed
    times = columns.timestamps
    header = BlockHeader(
        codec, flags, len(columns), headers, first, min(times), max(times), len(stored), len(raw), crc32c(stored), tag
    )
    return header.encode() + stored


def read_header(data: bytes | memoryview, at: int = 0, *, uri: str = "", start: int = 0) -> BlockHeader:
    """Reads the header of the block at `at`. `uri` and `start` locate `data` in error messages."""
    place = start + at
    if len(data) - at < HEADER_SIZE:
        raise Corrupt("ends within a block's header", uri=uri, start=place, length=len(data) - at)
    magic, version, *fields = _FIELDS.unpack_from(data, at)
    if magic != MAGIC:
        raise NotASegment(f"begins with {magic!r}: no block begins here", uri=uri, start=place, length=HEADER_SIZE)
    (checksum,) = _CHECKSUM.unpack_from(data, at + _FIELDS.size)
    if crc32c(data[at : at + _FIELDS.size]) != checksum:
        raise Corrupt("the block's header has a wrong checksum", uri=uri, start=place, length=HEADER_SIZE)
    if version != VERSION:
        why = f"has format version {version}, this is version {VERSION}: upgrade Astha"
        raise NotASegment(why, uri=uri, start=place, length=HEADER_SIZE)
    header = BlockHeader(*fields)
    wrong = _contradiction(header)
    if wrong is not None:
        raise Corrupt(f"the block's header {wrong}", uri=uri, start=place, length=HEADER_SIZE)
    return header


def _contradiction(header: BlockHeader) -> str | None:
    """Returns what is invalid in a header whose checksum is right, or None. Called before anything is allocated."""
    if header.codec not in (STORED, LZ4):
        return f"names codec {header.codec}, this version knows {STORED} and {LZ4}"
    if header.flags not in _FLAGS:
        return f"has flags {header.flags:#x}, which no writer sets"
    if not header.records:
        return "has no records"
    if header.first + header.records >= _OFFSETS_END:
        return f"begins at the relative offset {header.first:,}, which is beyond 64 bits"
    if header.raw_size > MAX_BODY_BYTES:
        return f"claims a body of {header.raw_size:,} bytes, the most is {MAX_BODY_BYTES:,}"
    if header.raw_size > header.stored_size * (_LZ4_RATIO if header.codec == LZ4 else 1):
        return f"claims {header.raw_size:,} bytes in {header.stored_size:,}, which is impossible"
    return None


def decode_block(
    data: bytes | memoryview,
    at: int = 0,
    *,
    base_offset: int = 0,
    tag: int | None = None,
    uri: str = "",
    start: int = 0,
) -> RecordBatch:
    """Returns the records of the block at `at`. Raises Corrupt, which names the range."""
    header = read_header(data, at, uri=uri, start=start)
    body = memoryview(data)[at + HEADER_SIZE : at + header.size]

    def corrupt(why: str) -> Corrupt:
        return Corrupt(why, uri=uri, start=start + at, length=header.size)

    if len(body) < header.stored_size:
        raise corrupt(f"ends {header.stored_size - len(body):,} bytes before its block does")
    if tag is not None and header.tag != tag:
        raise corrupt("contains another partition's records")
    if crc32c(body) != header.checksum:
        raise corrupt("the block's body has a wrong checksum")
    if base_offset + header.first + header.records >= _OFFSETS_END:
        raise corrupt(f"its offsets, from {base_offset + header.first:,} on, are beyond 64 bits")
    try:
        raw = lz4.block.decompress(body, uncompressed_size=header.raw_size) if header.codec == LZ4 else bytes(body)
    except (lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
        raise corrupt(f"can't be decompressed: {error}") from error
    if len(raw) != header.raw_size:
        raise corrupt(f"decompresses to {len(raw):,} bytes, not {header.raw_size:,}")
    try:
        return RecordBatch(base_offset + header.first, Body(raw, header.records, header.headers, header.flags))
    except ValueError as error:
        raise corrupt(f"its columns don't fit in it: {error}") from error


def _add_column(parts: list[bytes | array[int]], items: Sequence[bytes | None]) -> bool:
    """Adds bitmap (if there are nulls), offsets and bytes. Returns whether there are nulls."""
    given = list(items)
    filled = present(given)
    nulls = filled is not given
    if nulls:
        bits = "".join(["0" if item is None else "1" for item in reversed(given)])
        _add(parts, int(bits, 2).to_bytes((len(given) + 7) // 8, "little"))
    _add_offsets(parts, map(len, filled))
    _add(parts, b"".join(filled))
    return nulls


def _add_offsets(parts: list[bytes | array[int]], lengths: map[int]) -> None:
    try:
        offsets = array("i", accumulate(lengths, initial=0))
    except OverflowError:
        raise RecordTooLarge(f"a block of more than {MAX_BODY_BYTES:,} bytes: append fewer records at a time") from None
    _add(parts, offsets)


def _add(parts: list[bytes | array[int]], piece: bytes | array[int]) -> None:
    parts.append(piece)
    length = len(piece) if isinstance(piece, bytes) else 4 * len(piece)
    if length % 8:
        parts.append(_PADDING[length % 8])
