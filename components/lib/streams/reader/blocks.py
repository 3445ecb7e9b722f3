"""From a segment's row to its blocks, and from their bytes to records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from components.lib.streams.errors import Corrupt
from components.lib.streams.format import BlockIndex, RecordBatch, decode_block, partition_tag, read_header
from components.lib.streams.reader.block_cache import BlockAddress
from registry.models import Segment

_INDEXES = 10_000
_OVERHEAD = 1_000  # of a decoded block in memory, beyond its bytes


class CachedBlock(msgspec.Struct, frozen=True):
    """As it is cached: offsets count from the beginning of its segment, whose row says where that is."""

    tag: int
    batch: RecordBatch


class PlannedBlock(msgspec.Struct, frozen=True):
    """One block that a read wants: where it is, and which offsets are in it."""

    segment: Segment
    address: BlockAddress
    first_offset: int
    next_offset: int

    def open(self, block: CachedBlock) -> RecordBatch:
        """Corrupt if the bytes are another partition's, or another part of the segment."""
        batch = block.batch.shifted(self.segment.base_offset)
        if block.tag != partition_tag(self.segment.topic, self.segment.partition_id):
            raise self._corrupt(f"holds a block of another partition than {self._partition}")
        if (batch.first_offset, batch.next_offset) != (self.first_offset, self.next_offset):
            raise self._corrupt(
                f"holds offsets {batch.first_offset}..{batch.next_offset - 1} of {self._partition}, "
                f"not {self.first_offset}..{self.next_offset - 1}"
            )
        return batch

    @property
    def _partition(self) -> str:
        return f"{self.segment.topic}/{self.segment.partition_id}"

    def _corrupt(self, why: str) -> Corrupt:
        return Corrupt(why, uri=self.address.uri, start=self.address.start, length=self.address.length)


class SegmentLayout:
    """Which blocks a segment has. What its row says is decoded once, for those that are read again and again."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[int, tuple[Segment, BlockIndex]] = OrderedDict()

    def blocks(self, segment: Segment, offset: int) -> Iterator[PlannedBlock]:
        """From the one that holds the offset on. Corrupt if the row's block index can't be read."""
        index = self._index(segment)
        for number in range(index.holding(offset - segment.base_offset), len(index)):
            place = index[number]
            first = segment.base_offset + place.first
            address = BlockAddress(segment.uri, segment.byte_offset + place.start, place.size)
            yield PlannedBlock(segment, address, first, first + place.records)

    def _index(self, segment: Segment) -> BlockIndex:
        if segment.block_index is None:
            return BlockIndex([segment.size_bytes], [segment.record_count])
        known = self._indexes.get(segment.id)
        if known is not None and known[0] == segment:
            self._indexes.move_to_end(segment.id)
            return known[1]
        index = BlockIndex.decode(segment.block_index, segment.size_bytes, segment.record_count)
        self._indexes[segment.id] = (segment, index)
        if len(self._indexes) > _INDEXES:
            self._indexes.popitem(last=False)
        return index


def decode(address: BlockAddress, data: memoryview) -> tuple[CachedBlock, int]:
    """For a `BlockCache`."""
    if len(data) < address.length:
        raise Corrupt(
            f"the object ends after {len(data):,} of these {address.length:,} bytes",
            uri=address.uri, start=address.start, length=address.length,
        )  # fmt: skip
    header = read_header(data, uri=address.uri, start=address.start)
    batch = decode_block(data, uri=address.uri, start=address.start)
    return CachedBlock(header.tag, batch), batch.nbytes + _OVERHEAD
