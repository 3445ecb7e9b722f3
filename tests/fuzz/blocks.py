"""Segment blocks, footers and block indexes: damaged with their checksums wrong, and forged with their checksums right.

Promised: only Corrupt comes out. What is decoded can be read in every way (records, slices, Arrow, written again) with
one result, and no process dies of it. What was not changed is read as it was written.
"""

from __future__ import annotations

import random
import struct
from base64 import b85encode

import lz4.block
import msgspec
import pyarrow as pa
from crc32c import crc32c

from components.lib.streams.errors import Corrupt
from components.lib.streams.format import (
    HEADER_SIZE,
    BlockIndex,
    Columns,
    NewRecord,
    RecordBatch,
    SegmentEntry,
    decode_block,
    encode_block,
    encode_footer,
    encode_segment,
    read_footer,
    read_header,
    scan,
)
from tests.fuzz.mutations import mutated

EDGES = (0, 1, 2, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
FIELDS = ("codec", "flags", "records", "headers", "first", "stored_size", "raw_size")
WIDTHS = {"codec": 8, "flags": 16, "first": 64}


def play(rng: random.Random) -> None:
    rng.choice((_block, _block, _block, _forged_header, _footer, _index, _object))(rng)


def _records(rng: random.Random) -> list[NewRecord]:
    shape = rng.randrange(8)
    return [
        NewRecord(
            _bytes(rng, shape & 1),
            _bytes(rng, shape & 1) if shape & 2 else None,
            [(rng.choice(("", "h", "näme", "日本")), _bytes(rng, shape & 1)) for _ in range(rng.randrange(3))]
            if shape & 4
            else (),
            rng.choice((0, -(2**63), 2**63 - 1, 1_700_000_000_000)),
        )
        for _ in range(rng.choice((1, 2, 9, 150, 400)))
    ]


def _bytes(rng: random.Random, nulls: int) -> bytes | None:
    if nulls and rng.random() < 0.3:
        return None
    return rng.choice((b"", b"x", b"value " * 9, rng.randbytes(5)))


def _body(block: bytes) -> bytes:
    header = read_header(block)
    body = block[HEADER_SIZE:]
    return lz4.block.decompress(body, header.raw_size) if header.codec else body


def _block(rng: random.Random) -> None:
    """Returns a changed body, with correct or wrong checksums."""
    records = _records(rng)
    block = encode_block(Columns.of(records, 0), tag=7)
    assert [record.value for record in decode_block(block, tag=7)] == [record.value for record in records]
    if rng.random() < 0.2:
        _refused_or_whole(mutated(rng, block))
        return
    header = read_header(block)
    raw = bytearray(_body(block))
    if rng.random() < 0.6:  # an offset somewhere in the middle
        at = rng.randrange(0, len(raw) - 3) & ~3
        struct.pack_into("<I", raw, at, rng.choice((*EDGES, rng.randrange(len(raw) + 9))))
    else:
        raw = bytearray(mutated(rng, bytes(raw)))
    packed = rng.random() < 0.5
    stored = lz4.block.compress(bytes(raw), store_size=False) if packed else bytes(raw)
    changed = msgspec.structs.replace(
        header, codec=int(packed), stored_size=len(stored), raw_size=len(raw), checksum=crc32c(stored)
    )
    _refused_or_whole(changed.encode() + stored)


def _forged_header(rng: random.Random) -> None:
    """Returns a header whose numbers contradict the body."""
    block = encode_block(Columns.of(_records(rng), 0))
    header = read_header(block)
    for name in rng.sample(FIELDS, rng.choice((1, 1, 2))):
        bits = WIDTHS.get(name, 32)
        value = rng.choice((*EDGES, 2**63 - 1, 2**64 - 1, getattr(header, name) + 1, rng.randrange(40)))
        header = msgspec.structs.replace(header, **{name: value % 2**bits})
    if rng.random() < 0.3:
        stored = lz4.block.compress(bytes(1 << 20), store_size=False)
        header = msgspec.structs.replace(header, stored_size=len(stored), checksum=crc32c(stored))
    else:
        stored = block[HEADER_SIZE:]
    _refused_or_whole(header.encode() + stored)


def _refused_or_whole(block: bytes) -> None:
    try:
        batch = decode_block(block, base_offset=5)
    except Corrupt:
        return
    _read_in_every_way(batch)


def _read_in_every_way(batch: RecordBatch) -> None:
    records = list(batch)
    assert [batch[place] for place in range(len(batch))] == records
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    for name in ("key", "value"):
        assert arrow[name].to_pylist() == [getattr(record, name) for record in records]
    headers = [tuple((one["name"], one["value"]) for one in several or ()) for several in arrow["headers"].to_pylist()]
    assert headers == [record.headers for record in records]
    assert arrow["timestamp"].cast(pa.int64()).to_pylist() == [record.timestamp for record in records]
    assert list(batch[1:]) == records[1:]
    again = decode_block(encode_block(batch.to_columns(), first=0), base_offset=batch.first_offset)
    assert list(again) == records


def _entries(rng: random.Random) -> list[SegmentEntry]:
    return [
        SegmentEntry(f"topic {number}", number, 10 * number, 1_000 * number, [(100, 3)] * rng.randrange(1, 4))
        for number in range(rng.randrange(4))
    ]


def _footer(rng: random.Random) -> None:
    entries = _entries(rng)
    footer = encode_footer(entries)
    assert read_footer(footer) == entries
    if rng.random() < 0.3:
        data = mutated(rng, footer)
    else:
        body = mutated(rng, footer[:-16], [b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 2_000, b"\xc0"])
        checked = body + struct.pack("<IHH", rng.choice((len(body), len(body), 2**32 - 1, 0)), 1, 0)
        data = checked + struct.pack("<I", crc32c(checked)) + b"ASOB"
    end = rng.choice((None, len(data), len(data) + 3_000, 2**62))
    try:
        found = read_footer(data, end=end)
    except Corrupt:
        return
    for entry in found:
        assert min(entry.partition_id, entry.base_offset, entry.byte_offset) >= 0
        assert all(size > 0 and records > 0 for size, records in entry.blocks)
        assert end is None or entry.byte_offset + entry.index.size < end


def _index(rng: random.Random) -> None:
    blocks = [(rng.choice((1, 127, 128, 2**31)), rng.choice((1, 200))) for _ in range(rng.randrange(2, 9))]
    index = BlockIndex([size for size, _ in blocks], [records for _, records in blocks])
    text = index.encode()
    assert text is not None
    if rng.random() < 0.5:
        text = mutated(rng, text.encode(), [b"~" * 5, b"|NsC0" * 30]).decode(errors="replace")
    else:
        text = b85encode(mutated(rng, rng.randbytes(9), [b"\xff" * 30, b"\x80", b"\0"])).decode()
    size, count = rng.choice(((index.size, index.records), (rng.randrange(300), rng.randrange(300))))
    try:
        found = BlockIndex.decode(text, size, count)
    except Corrupt:
        return
    assert (found.size, found.records) == (size, count)
    assert [found.holding(place.first) for place in found] == list(range(len(found)))


def _object(rng: random.Random) -> None:
    """Checks salvage: every block found begins at its stated offset, and the search ends."""
    segment = encode_segment(Columns.of(_records(rng), 0), block_bytes=rng.choice((200, 4_096)))
    data = mutated(rng, b"".join(segment.blocks) + encode_footer(_entries(rng)), [b"ASBK", b"ASOB", segment.blocks[0]])
    for at, header in scan(data):
        assert data[at : at + 4] == b"ASBK"
        _refused_or_whole(data[at : at + header.size])
