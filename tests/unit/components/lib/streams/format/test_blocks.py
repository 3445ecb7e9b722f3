from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.lib.streams.errors import Corrupt, NotASegment
from components.lib.streams.format import (
    HEADER_SIZE,
    NewRecord,
    Record,
    RecordBatch,
    RecordColumns,
    decode_block,
    encode_block,
    partition_tag,
    read_header,
)

BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        value=BYTES,
        key=BYTES,
        headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), BYTES), max_size=3),
        timestamp=st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=40,
)
SOME = [
    NewRecord(b"v%d" % n, None if n % 3 else b"k%d" % n, [("h", b"x"), ("", None)] if n % 5 == 0 else (), n)
    for n in range(50)
]


def _read(records: Sequence[NewRecord], base: int = 0) -> list[Record]:
    return [
        Record(base + n, r.timestamp or 0, r.key, r.value, tuple((name, value) for name, value in r.headers))
        for n, r in enumerate(records)
    ]


@given(RECORDS, st.integers(0, 2**62), st.integers(0, 2**32))
def test_written_records_are_read(records: list[NewRecord], base: int, first: int) -> None:
    block = encode_block(RecordColumns.of(records, 0), first=first, tag=7)
    header = read_header(block)
    times = [record.timestamp for record in records]
    assert (header.records, header.first, header.size) == (len(records), first, len(block))
    assert (header.min_timestamp, header.max_timestamp) == (min(times), max(times))  # type: ignore[type-var]
    batch = decode_block(block, base_offset=base, tag=7)
    assert list(batch) == _read(records, base + first)
    assert [batch[place] for place in range(len(batch))] == list(batch)
    again = encode_block(batch.to_columns(), first=first, tag=7)
    assert again == block


@given(RECORDS)
def test_arrow_has_the_same_records(records: list[NewRecord]) -> None:
    batch = decode_block(encode_block(RecordColumns.of(records, 0)), base_offset=9)[1:]
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    rows = [
        (offset, time, key, value, tuple((h["name"], h["value"]) for h in headers or ()))
        for offset, time, key, value, headers in zip(
            arrow["offset"].to_pylist(), arrow["timestamp"].cast("int64").to_pylist(), arrow["key"].to_pylist(),
            arrow["value"].to_pylist(), arrow["headers"].to_pylist(), strict=True,
        )
    ]  # fmt: skip
    assert rows == [msgspec.structs.astuple(record) for record in batch]


def test_arrow_shares_the_bytes() -> None:
    batch = decode_block(encode_block(RecordColumns.of(SOME, 0)))
    arrow = batch.to_arrow()
    value = arrow["value"].buffers()[2]
    raw = batch._body.raw
    import pyarrow as pa

    body = pa.py_buffer(raw)
    for name in ("timestamp", "key", "value", "headers"):
        for buffer in arrow[name].buffers():
            if buffer is not None:
                assert body.address <= buffer.address <= body.address + len(raw)
                assert buffer.address % 8 == 0 or buffer is value
    assert value.address % 8 == 0


def test_records_are_accepted_in_several_forms() -> None:
    assert list(decode_block(encode_block(RecordColumns.of([b"a", b"b"], 5)))) == [
        Record(0, 5, None, b"a"), Record(1, 5, None, b"b"),
    ]  # fmt: skip
    assert list(decode_block(encode_block(RecordColumns.of([b"a", NewRecord(b"b", b"k")], 5)))) == [
        Record(0, 5, None, b"a"), Record(1, 5, b"k", b"b"),
    ]  # fmt: skip


def test_columns_with_missing_parts_are_joined() -> None:
    parts = [
        RecordColumns.of([b"a"], 1),
        RecordColumns.of(SOME[:2], 2),
        RecordColumns.of([NewRecord(b"x", headers=[("h", b"")])], 3),
    ]
    whole = RecordColumns.joined(parts)
    assert len(whole) == 4
    assert list(decode_block(encode_block(whole))) == [
        Record(0, 1, None, b"a"),
        Record(1, 0, b"k0", b"v0", (("h", b"x"), ("", None))),
        Record(2, 1, None, b"v1"),
        Record(3, 3, None, b"x", (("h", b""),)),
    ]
    assert RecordColumns.joined(parts[:1]) is parts[0]


def test_a_batch_is_a_sequence() -> None:
    batch = decode_block(encode_block(RecordColumns.of(SOME, 0), first=10), base_offset=90)
    assert (batch.first_offset, batch.next_offset, len(batch)) == (100, 150, 50)
    assert batch[-1] == batch[49]
    part = batch[10:20]
    assert isinstance(part, RecordBatch)
    assert list(part[5:]) == list(batch)[15:20]
    assert list(batch.from_offset(147)) == list(batch)[47:]
    assert list(batch.from_offset(3)) == list(batch)
    assert len(batch.from_offset(150)) == 0
    assert list(part.timestamps) == list(range(10, 20))
    for place in (50, -51):
        with pytest.raises(IndexError):
            batch[place]
    with pytest.raises(ValueError, match="consecutive"):
        batch[::2]


@pytest.mark.parametrize("records", [SOME[:2], SOME * 20], ids=["stored", "compressed"])
def test_every_flipped_bit_is_detected(records: list[NewRecord]) -> None:
    block = encode_block(RecordColumns.of(records, 0), tag=3)
    bits = range(8 * len(block))
    for bit in bits if len(block) < 300 else random.Random(1).sample(bits, 3_000):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_block(bytes(damaged), tag=3, uri="s3://lake/o", start=1_000)


def test_an_error_names_object_and_range() -> None:
    block = bytearray(encode_block(RecordColumns.of(SOME, 0)))
    block[-1] ^= 1
    with pytest.raises(Corrupt, match=r"s3://lake/o, from 1,005 to .*wrong checksum") as caught:
        decode_block(b"12345" + bytes(block), 5, uri="s3://lake/o", start=1_000)
    assert (caught.value.uri, caught.value.start, caught.value.length) == ("s3://lake/o", 1_005, len(block))


def test_a_truncated_block_is_detected() -> None:
    block = encode_block(RecordColumns.of(SOME, 0))
    for length in (0, 1, HEADER_SIZE - 1, HEADER_SIZE, len(block) - 1):
        with pytest.raises(Corrupt, match="ends"):
            decode_block(block[:length])


def test_a_block_of_another_partition_is_detected() -> None:
    block = encode_block(RecordColumns.of(SOME, 0), tag=partition_tag("orders", 1))
    with pytest.raises(Corrupt, match="another partition"):
        decode_block(block, tag=partition_tag("orders", 11))
    assert len(decode_block(block)) == 50


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_block(data)


def test_a_newer_version_is_reported() -> None:
    header = read_header(encode_block(RecordColumns.of(SOME, 0))).encode()
    from crc32c import crc32c

    newer = header[:4] + b"\x02" + header[5:60]
    with pytest.raises(NotASegment, match="version 2"):
        read_header(newer + crc32c(newer).to_bytes(4, "little"))


@given(st.binary(min_size=0, max_size=120), st.integers(1, 20), st.integers(0, 20), st.integers(0, 31))
def test_columns_that_do_not_fit_are_an_error(raw: bytes, records: int, headers: int, flags: int) -> None:
    """Even with right checksums, nothing is read beyond the body."""
    from crc32c import crc32c

    from components.lib.streams.format import BlockHeader

    header = BlockHeader(0, flags, records, headers, 0, 0, 0, len(raw), len(raw), crc32c(raw), 0)
    try:
        batch = decode_block(header.encode() + raw)
    except Corrupt:
        return
    assert len(batch) == records
