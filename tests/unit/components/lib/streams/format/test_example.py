"""The worked example of docs/reference/segment-format.md is what the code writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

from components.lib.streams.format import (
    NewRecord,
    Record,
    RecordColumns,
    SegmentEntry,
    decode_block,
    encode_footer,
    encode_segment,
    partition_tag,
    read_footer,
)

DOCUMENT = Path(__file__).parents[6] / "docs" / "reference" / "segment-format.md"
FIRST, SECOND = 1_700_000_000_000, 1_700_000_000_005


def _documented() -> bytes:
    (dump,) = re.findall(r"```hex\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    lines = [line.split("  ") for line in dump.splitlines()]
    data = bytes.fromhex(" ".join(line[1] for line in lines))
    assert [int(line[0], 16) for line in lines] == list(range(0, len(data), 16))
    return data


def test_the_example_is_what_the_writer_produces() -> None:
    records = [NewRecord(b"apple", b"a", (), FIRST), NewRecord(None, b"b", [("trace", b"\x01")], SECOND)]
    segment = encode_segment(RecordColumns.of(records, now_ms=0), tag=partition_tag("orders", 0))
    footer = encode_footer([SegmentEntry("orders", 0, 42, 0, [(place.size, place.records) for place in segment.index])])
    assert b"".join(segment.blocks) + footer == _documented()


def test_the_example_can_be_read() -> None:
    data = _documented()
    (entry,) = read_footer(data)
    assert (entry.topic, entry.partition_id, entry.base_offset, entry.byte_offset) == ("orders", 0, 42, 0)
    batch = decode_block(data, entry.byte_offset, base_offset=entry.base_offset, tag=partition_tag("orders", 0))
    assert list(batch) == [
        Record(42, FIRST, b"a", b"apple"),
        Record(43, SECOND, b"b", None, (("trace", b"\x01"),)),
    ]
