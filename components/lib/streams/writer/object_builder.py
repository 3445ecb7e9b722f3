"""Parts of a window as one object: their segments one after the other, and the footer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from components.lib.streams.format import EncodedSegment, SegmentEntry, encode_footer, encode_segment, partition_tag
from components.lib.streams.writer.accumulator import PartitionAppends
from registry.inputs import SegmentDraft

_tag = lru_cache(maxsize=100_000)(partition_tag)


class PackedSegment(msgspec.Struct, frozen=True):
    """A part in its object. Which offsets it gets is said when it is registered."""

    part: PartitionAppends
    segment: EncodedSegment
    byte_offset: int

    def draft(self, bucket: str, key: str) -> SegmentDraft:
        base, segment = self.part.held.next_offset, self.segment
        return SegmentDraft(
            *self.part.held.key, base, base + segment.records - 1, segment.records, segment.size, bucket, key,
            self.byte_offset, segment.min_timestamp, segment.max_timestamp, segment.index.encode(),
        )  # fmt: skip


def pack(parts: Sequence[PartitionAppends], block_bytes: int) -> tuple[bytes, list[PackedSegment]]:
    """May take long for large ones: give them to a thread. Nobody adds to the parts any more."""
    pieces: list[bytes] = []
    packed: list[PackedSegment] = []
    entries: list[SegmentEntry] = []
    at = 0
    for part in parts:
        weight = sum([append.size for append in part.appends])
        segment = encode_segment(part.columns, tag=_tag(*part.held.key), block_bytes=block_bytes, at_most=weight)
        packed.append(PackedSegment(part, segment, at))
        blocks = [(place.size, place.records) for place in segment.index]
        entries.append(SegmentEntry(*part.held.key, part.held.next_offset, at, blocks))
        pieces += segment.blocks
        at += segment.size
    pieces.append(encode_footer(entries))
    return b"".join(pieces), packed
