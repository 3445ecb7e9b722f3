"""Builds one object of a window: segments one after the other, and the footer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from components.lib.streams.format import EncodedSegment, SegmentEntry, encode_footer, encode_segment, partition_tag
from components.lib.streams.writer.accumulator import PartitionAppends
from registry.inputs import SegmentDraft

_tag = lru_cache(maxsize=100_000)(partition_tag)


class PackedSegment(msgspec.Struct, frozen=True):
    """The appends of one partition as a segment of an object. Its offsets are assigned at registration."""

    part: PartitionAppends
    segment: EncodedSegment
    byte_offset: int

    def draft(self, bucket: str, key: str) -> SegmentDraft:
        base, segment = self.part.lease.next_offset, self.segment
        return SegmentDraft(
            *self.part.lease.key, base, base + segment.records - 1, segment.records, segment.size, bucket, key,
            self.byte_offset, segment.min_timestamp, segment.max_timestamp, segment.index.encode(),
        )  # fmt: skip


def build_object(parts: Sequence[PartitionAppends], block_bytes: int) -> tuple[bytes, list[PackedSegment]]:
    """Returns the object and its segments. CPU-bound: run it in a thread for large windows, which must be closed."""
    pieces: list[bytes] = []
    packed: list[PackedSegment] = []
    entries: list[SegmentEntry] = []
    at = 0
    for part in parts:
        weight = sum([append.size for append in part.appends])
        segment = encode_segment(part.columns, tag=_tag(*part.lease.key), block_bytes=block_bytes, at_most=weight)
        packed.append(PackedSegment(part, segment, at))
        blocks = [(location.size, location.records) for location in segment.index]
        entries.append(SegmentEntry(*part.lease.key, part.lease.next_offset, at, blocks))
        pieces += segment.blocks
        at += segment.size
    pieces.append(encode_footer(entries))
    return b"".join(pieces), packed
