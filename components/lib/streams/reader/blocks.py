"""Locates the blocks of a segment by its row, and decodes their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from components.lib.streams.errors import Corrupt
from components.lib.streams.format import BlockIndex, RecordBatch, decode_block, partition_tag, read_header
from components.lib.streams.reader.block_cache import BlockAddress
from registry.models import Segment

_INDEXES = 10_000
_OVERHEAD = 1_000  # bytes of a decoded block in memory, beyond its data


class CachedBlock(msgspec.Struct, frozen=True):
    """A decoded block. Its offsets are relative to its segment, whose row has the base offset."""

    tag: int
    batch: RecordBatch


class PlannedBlock(msgspec.Struct, frozen=True):
    """A block to be read: its address, and the offsets that it contains."""

    segment: Segment
    address: BlockAddress
    first_offset: int
    next_offset: int

    def open(self, block: CachedBlock) -> RecordBatch:
        """Returns the records. Raises Corrupt if the bytes are another partition's, or another part of the segment."""
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
    """The blocks of segments. Caches decoded block indexes."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[int, tuple[Segment, BlockIndex]] = OrderedDict()

    def blocks(self, segment: Segment, offset: int) -> Iterator[PlannedBlock]:
        """Yields blocks from the one that contains the offset on. Raises Corrupt if the row's index is invalid."""
        index = self._index(segment)
        for number in range(index.find_block(offset - segment.base_offset), len(index)):
            location = index[number]
            first = segment.base_offset + location.first
            address = BlockAddress(segment.uri, segment.byte_offset + location.start, location.size)
            yield PlannedBlock(segment, address, first, first + location.records)

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
    """The `BlockDecoder` of segment blocks."""
    if len(data) < address.length:
        raise Corrupt(
            f"the object ends after {len(data):,} of these {address.length:,} bytes",
            uri=address.uri, start=address.start, length=address.length,
        )  # fmt: skip
    header = read_header(data, uri=address.uri, start=address.start)
    batch = decode_block(data, uri=address.uri, start=address.start)
    return CachedBlock(header.tag, batch), batch.nbytes + _OVERHEAD
