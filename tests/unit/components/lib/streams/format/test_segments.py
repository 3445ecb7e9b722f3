from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.lib.streams.errors import Corrupt, NotASegment
from components.lib.streams.format import (
    BlockIndex,
    NewRecord,
    RecordColumns,
    SegmentEntry,
    decode_block,
    encode_footer,
    encode_segment,
    read_footer,
    scan,
)

ENTRIES = [
    SegmentEntry("orders", 0, 42, 0, [(184, 2)]),
    SegmentEntry("orders \u0416", 2**31 - 1, 2**62, 184, [(70_000, 5_000), (1, 2), (3, 4)]),
]


@pytest.mark.parametrize("keyed", [False, True])
def test_records_are_split_into_blocks(keyed: bool) -> None:
    rng = random.Random(5)
    records = [
        NewRecord(rng.randbytes(rng.choice([0, 10, 200, 6_000])), b"k%d" % n if keyed else None, timestamp=n)
        for n in range(500)
    ]
    segment = encode_segment(RecordColumns.of(records, 0), tag=1, block_bytes=4_096)
    assert len(segment.blocks) > 50
    assert (segment.records, segment.min_timestamp, segment.max_timestamp) == (500, 0, 499)
    data = b"".join(segment.blocks)
    assert segment.size == len(data)
    index = BlockIndex.decode(segment.index.encode(), len(data), 500)
    found = []
    for place in index:
        batch = decode_block(data[place.start : place.start + place.size], base_offset=1_000, tag=1)
        assert (batch.first_offset, len(batch)) == (1_000 + place.first, place.records)
        assert len(batch) == 1 or batch.nbytes <= 4_096 + 64
        found += [(record.timestamp, record.key, record.value) for record in batch]
    assert found == [(record.timestamp, record.key, record.value) for record in records]


def test_one_block_needs_no_index() -> None:
    segment = encode_segment(RecordColumns.of([b"a", b"b"], 0))
    assert segment.index.encode() is None
    index = BlockIndex.decode(None, segment.size, 2)
    assert len(index) == 1
    assert index[0] == segment.index[0]
    assert (index.find_block(0), index.find_block(1)) == (0, 0)


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**30)), min_size=2, max_size=30))
def test_an_index_round_trips(blocks: list[tuple[int, int]]) -> None:
    index = BlockIndex([size for size, _ in blocks], [records for _, records in blocks])
    text = index.encode()
    assert list(BlockIndex.decode(text, index.size, index.records)) == list(index)
    for number, place in enumerate(index):
        assert index.find_block(place.first) == index.find_block(place.first + place.records - 1) == number
    for beyond in (-1, index.records):
        with pytest.raises(IndexError):
            index.find_block(beyond)
    with pytest.raises(Corrupt, match="block_index"):
        BlockIndex.decode(text, index.size + 1, index.records)


@pytest.mark.parametrize("text", ["", "0", "zzzz", "\u0416", "a b", "|NsC0" * 3])
def test_an_invalid_index_is_an_error(text: str) -> None:
    with pytest.raises(Corrupt, match="block_index"):
        BlockIndex.decode(text, 100, 10)


def test_a_footer_round_trips() -> None:
    footer = encode_footer(ENTRIES)
    assert read_footer(b"blocks" + footer) == ENTRIES
    assert list(ENTRIES[1].index)[2].first == 5_002
    assert read_footer(encode_footer([])) == []


def test_every_flipped_bit_of_a_footer_is_detected() -> None:
    footer = encode_footer(ENTRIES)
    for bit in range(8 * len(footer)):
        damaged = bytearray(footer)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            read_footer(bytes(damaged), uri="s3://lake/o")


@pytest.mark.parametrize("tail", [b"", b"ASOB", b"PAR1" * 9, bytes(64)])
def test_other_objects_have_no_footer(tail: bytes) -> None:
    with pytest.raises(NotASegment, match="s3://lake/o"):
        read_footer(tail, uri="s3://lake/o")


def test_a_truncated_footer_is_reported() -> None:
    with pytest.raises(Corrupt, match="only the last"):
        read_footer(encode_footer(ENTRIES)[3:])


def test_blocks_are_salvaged_around_damage() -> None:
    segment = encode_segment(RecordColumns.of([b"%04d" % n * 20 for n in range(1_000)], 0), block_bytes=8_192)
    data = bytearray(b"".join(segment.blocks))
    assert [at for at, _ in scan(bytes(data))] == [place.start for place in segment.index]
    data[segment.index[1].start + 9] ^= 1
    found = dict(scan(bytes(data)))
    assert set(found) == {place.start for place in segment.index} - {segment.index[1].start}
