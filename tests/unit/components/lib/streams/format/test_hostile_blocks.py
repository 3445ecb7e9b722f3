"""Bytes with right checksums and wrong contents are refused when they are decoded, before anything is allocated."""

from __future__ import annotations

import struct
from base64 import b85encode

import lz4.block
import msgspec
import pytest
from crc32c import crc32c

from components.lib.streams.errors import Corrupt, RecordTooLarge
from components.lib.streams.format import (
    HEADER_SIZE,
    MAX_BODY_BYTES,
    BlockHeader,
    BlockIndex,
    NewRecord,
    RecordColumns,
    SegmentEntry,
    decode_block,
    encode_block,
    encode_footer,
    read_footer,
    read_header,
)

MANY = 300  # records: more than are checked without NumPy
KEYED = [NewRecord(b"value %d" % n, b"k%d" % n, timestamp=n) for n in range(MANY)]
NAMED = [NewRecord(b"v", None, [("näme", b"x")], n) for n in range(3)]


def _body(block: bytes) -> bytearray:
    header = read_header(block)
    body = block[HEADER_SIZE:]
    return bytearray(lz4.block.decompress(body, header.raw_size) if header.codec else body)


def _block(raw: bytearray, like: bytes, **changes: int) -> bytes:
    """A body under a header with right checksums: only what `changes` name differs from `like`."""
    stored = lz4.block.compress(raw, store_size=False) if read_header(like).codec else bytes(raw)
    sizes = {"stored_size": len(stored), "raw_size": len(raw), "checksum": crc32c(stored)}
    header = msgspec.structs.replace(read_header(like), **{**sizes, **changes})
    return header.encode() + stored


@pytest.mark.parametrize("count", [20, MANY])
@pytest.mark.parametrize("offset", [-1, -(2**31), 2**31 - 1, 1_000_000])
def test_an_invalid_interior_offset_is_refused(count: int, offset: int) -> None:
    block = encode_block(RecordColumns.of(KEYED[:count], 0))
    raw = _body(block)
    struct.pack_into("<i", raw, 8 * count + 4 * (count // 2), offset)  # of the keys, behind the timestamps
    with pytest.raises(Corrupt, match=r"offsets decrease"):
        decode_block(_block(raw, block))


def test_decreasing_header_lists_are_refused() -> None:
    block = encode_block(RecordColumns.of(NAMED, 0))
    raw = _body(block)
    lists = raw.index(struct.pack("<iiii", 0, 1, 2, 3), 24 + 16)
    struct.pack_into("<i", raw, lists + 4, 2**31 - 1)
    with pytest.raises(Corrupt, match=r"offsets decrease"):
        decode_block(_block(raw, block))


@pytest.mark.parametrize("wrong", [b"n\xffme", b"n\xc3me"])
def test_header_names_that_are_not_utf8_are_refused(wrong: bytes) -> None:
    block = encode_block(RecordColumns.of(NAMED, 0))
    raw = _body(block)
    at = raw.index("näme".encode())
    raw[at : at + 4] = wrong
    with pytest.raises(Corrupt, match="utf-8"):
        decode_block(_block(raw, block))


def test_a_name_cut_within_a_character_is_refused() -> None:
    """The names together are UTF-8, each of them is not."""
    block = encode_block(RecordColumns.of([NewRecord(b"v", None, [("ab", b""), ("ä", b"")], 0)], 0))
    raw = _body(block)
    at = raw.index(struct.pack("<iii", 0, 2, 4))
    struct.pack_into("<i", raw, at + 4, 3)
    with pytest.raises(Corrupt, match="utf-8"):
        decode_block(_block(raw, block))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"codec": 9}, "names codec 9"),
        ({"flags": 1 << 9}, "flags 0x200"),
        ({"flags": 2}, "flags 0x2"),
        ({"flags": 16}, "flags 0x10"),
        ({"records": 0}, "no records"),
        ({"records": 2**32 - 1}, "timestamps"),
        ({"headers": 7}, "7 headers"),
        ({"first": 2**63 - 1}, "beyond 64 bits"),
        ({"first": 2**64 - 1}, "beyond 64 bits"),
        ({"raw_size": MAX_BODY_BYTES + 1}, "the most is"),
        ({"raw_size": 2**32 - 1}, "the most is"),
        ({"raw_size": 10_000_000}, "which is impossible"),
    ],
)
def test_a_contradictory_header_is_refused(changes: dict[str, int], why: str) -> None:
    block = encode_block(RecordColumns.of(KEYED, 0))
    with pytest.raises(Corrupt, match=why):
        decode_block(_block(_body(block), block, **changes))


def test_a_body_above_the_limit_is_not_decompressed() -> None:
    """LZ4's own ratio allows 1.5 GB in 5.9 MB: the limit does not."""
    packed = lz4.block.compress(bytes(32 << 20), store_size=False)
    header = BlockHeader(1, 0, 1, 0, 0, 0, 0, len(packed), MAX_BODY_BYTES + 8, crc32c(packed), 0)
    with pytest.raises(Corrupt, match=r"claims a body of 268,435,464 bytes"):
        decode_block(header.encode() + packed)


def test_a_writer_refuses_blocks_that_readers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.lib.streams.format.block.MAX_BODY_BYTES", 1_000)
    with pytest.raises(RecordTooLarge, match="exceeds 1,000"):
        encode_block(RecordColumns.of([bytes(1_000)], 0))


def test_offsets_beyond_64_bits_are_refused_with_their_base() -> None:
    block = encode_block(RecordColumns.of(KEYED, 0))
    decode_block(block, base_offset=2**63 - 2 - MANY).to_arrow()
    with pytest.raises(Corrupt, match="beyond 64 bits"):
        decode_block(block, base_offset=2**63 - MANY)


def test_an_index_with_an_oversized_number_is_refused_early() -> None:
    """Without a bound, a number of 200,000 bytes takes seconds."""
    text = b85encode(b"\xff" * 200_000).decode()
    with pytest.raises(Corrupt, match="more than 63 bits"):
        BlockIndex.decode(text, 100, 10)


@pytest.mark.parametrize("numbers", [bytes([0, 5, 100, 5]), bytes([50, 0, 50, 10])])
def test_an_index_with_empty_blocks_is_refused(numbers: bytes) -> None:
    with pytest.raises(Corrupt, match="without bytes or records"):
        BlockIndex.decode(b85encode(numbers).decode(), 100, 10)


def _footer(body: bytes) -> bytes:
    checked = body + struct.pack("<IHH", len(body), 1, 0)
    return checked + struct.pack("<I", crc32c(checked)) + b"ASOB"


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode([("orders", -1, 0, 0, [(100, 1)])]),
        msgspec.msgpack.encode([("orders", 0, 0, 2**64 - 1, [(100, 1)])]),
        msgspec.msgpack.encode([("orders", 0, 0, 0, [(0, 1)])]),
        msgspec.msgpack.encode([("orders", 0, 0, 0, [(100, -5)])]),
        b"\x91\x95\xa2\xff\xfe\x00\x00\x00\x90",  # a topic that is not UTF-8
        b"\xdd\xff\xff\xff\xff",  # four billion entries
        b"\x91" * 100_000,  # lists in lists
    ],
)
def test_an_invalid_footer_is_refused(body: bytes) -> None:
    with pytest.raises(Corrupt, match=r"s3://lake/o.*footer"):
        read_footer(_footer(body), uri="s3://lake/o")


def test_a_footer_that_lists_more_than_the_object_has_is_refused() -> None:
    footer = encode_footer([SegmentEntry("orders", 0, 0, 0, [(100, 1), (50, 1)])])
    assert len(read_footer(footer, end=150 + len(footer))) == 1
    with pytest.raises(Corrupt, match=r"orders/0 at byte 0.*does not end before the footer"):
        read_footer(footer, end=149 + len(footer))
    with pytest.raises(Corrupt, match="claims a footer"):
        read_footer(footer, end=len(footer) - 1)
