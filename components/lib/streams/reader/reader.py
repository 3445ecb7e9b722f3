"""`Reader`: records by offset and by time.

The registry's rows say which blocks hold an offset, so a read fetches just those: as many requests as there are runs
of neighbours among the blocks that are not cached, and never one for an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

import msgspec

from astha.clock import LoopClock
from components.lib.lake.storage.objects import ObjectMissing
from components.lib.streams.change_feed import ChangeFeed, PartitionWatch
from components.lib.streams.errors import OffsetBeyondEnd, OffsetTooOld
from components.lib.streams.format import BLOCK_BYTES, RecordBatch
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, PlannedBlock, SegmentLayout
from components.lib.streams.reader.records import FetchedRecords, trimmed
from registry.errors import NotFound
from registry.models import Partition, Segment

MAX_BYTES = 4 << 20
"""Of one read unless the caller says otherwise."""

_SEGMENTS_AT_ONCE = 256  # small ones: each may be a request
_RAW_BYTES = 32 << 20  # in memory for one read, about
_LARGEST_RATIO = 255  # LZ4's
_LOOKS = 5  # at a partition that changes under our hands
_SCAN_BLOCKS = 4  # fetched at once while looking for a time
_UNFOLLOWED_S = 1.0  # between two looks when nobody tells of news
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.25


class PartitionBounds(msgspec.Struct, frozen=True):
    """The first offset that is retained, and the next to be written; equal if there is nothing."""

    start: int
    end: int


class Reader:
    """Any number of reads at a time. Errors of registry and storage come as they are; both may be tried again."""

    def __init__(self, feed: ChangeFeed, cache: BlockCache[CachedBlock], clock: LoopClock) -> None:
        self.feed = feed
        self.cache = cache
        self.clock = clock
        self._store = feed.store
        self._layout = SegmentLayout()

    async def read(
        self,
        topic: str,
        partition_id: int,
        offset: int,
        *,
        max_records: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait_s: float = 0.0,
    ) -> FetchedRecords:
        """Records from the offset on, at least one unless that is the end; at most about ``max_bytes`` of them, as they
        are stored.

        At the end it waits up to ``wait_s`` for the next record. OffsetTooOld and OffsetBeyondEnd say where to go.
        Corrupt names the object and the range; what comes before it is read first, and what comes after it can be read.
        """
        if wait_s <= 0:
            return await self._read(topic, partition_id, offset, max_records, max_bytes)
        end = self.clock.monotonic() + wait_s
        key = (topic, partition_id)
        with self.feed.watch([key]) as watch:
            while True:
                watch.clear()
                found = await self._read(topic, partition_id, offset, max_records, max_bytes)
                left = end - self.clock.monotonic()
                if found.batches or left <= 0:
                    return found
                await self.wait(watch, {key: offset}, left)

    async def wait(self, watch: PartitionWatch, offsets: dict[tuple[str, int], int], timeout_s: float) -> None:
        """Until there may be something at one of the offsets, or the time is over.

        PostgreSQL sends a commit before other sessions see it. Who was told of a record that can't be found yet looks
        again in a moment.
        """
        if any(watch.ends.get(key, 0) > offset for key, offset in offsets.items()):
            pause = min(watch.pause or _FIRST_PAUSE_S, timeout_s)
            watch.pause = min(pause * 2, _LONGEST_PAUSE_S)
            await watch.wait(pause)
        else:
            watch.pause = None
            await watch.wait(timeout_s if self.feed.followed else min(timeout_s, _UNFOLLOWED_S))

    async def bounds(self, topic: str, partition_id: int) -> PartitionBounds:
        """As the registry has them now."""
        partition = await self._partition(topic, partition_id)
        first = await self._store.get_segments(topic, partition_id, limit=1)
        return PartitionBounds(first[0].base_offset if first else partition.high_watermark, partition.high_watermark)

    async def offset_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> int | None:
        """Of the first record that is as late or later; None if there is none yet."""
        segment = await self._store.find_segment_for_timestamp(topic, partition_id, timestamp)
        while segment is not None:
            offset = segment.base_offset
            while offset <= segment.end_offset:
                plans = list(islice(self._layout.blocks(segment, offset), _SCAN_BLOCKS))
                for batch in await self._batches(plans):
                    for place, time in enumerate(batch.timestamps):
                        if time >= timestamp:
                            return batch.first_offset + place
                    offset = batch.next_offset
            following = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=1)
            segment = following[0] if following else None
        return None

    def plan(self, topic: str, partition_id: int, offset: int, max_bytes: int) -> list[PlannedBlock]:
        """Blocks from the offset on of which memory knows, so many bytes of them as they are stored and not too many
        when decompressed; at least one if any.
        """
        plans: list[PlannedBlock] = []
        size = raw = 0
        for _ in range(_SEGMENTS_AT_ONCE):
            segment = self._store.index.lookup(topic, partition_id, offset)
            if segment is None:
                break
            for block in self._layout.blocks(segment, offset):
                size += block.address.length
                raw += min(BLOCK_BYTES, _LARGEST_RATIO * block.address.length)
                if plans and (size > max_bytes or raw > _RAW_BYTES):
                    return plans
                plans.append(block)
            offset = segment.end_offset + 1
        return plans

    async def _read(
        self, topic: str, partition_id: int, offset: int, max_records: int | None, max_bytes: int
    ) -> FetchedRecords:
        for last in (False, True):
            found = await self._find(topic, partition_id, offset)
            if found is None:
                return FetchedRecords((), offset)
            offset = max(offset, found.base_offset)
            plans = self._enough(self.plan(topic, partition_id, offset, max_bytes), offset, max_records)
            if not plans:  # memory has let go of it already
                plans = [next(self._layout.blocks(found, offset))]
            try:
                batches = await self._batches(plans)
            except ObjectMissing:
                # Merged or deleted, and the news is late: the store knows what is there now.
                if last:
                    raise
                self._store.index.forget(plan.segment for plan in plans)
                continue
            return self._cut(plans[0], batches, offset, max_records, max_bytes)
        raise AssertionError("unreachable")

    @staticmethod
    def _enough(plans: list[PlannedBlock], offset: int, max_records: int | None) -> list[PlannedBlock]:
        if max_records is None:
            return plans
        return [plan for plan in plans if plan.first_offset < offset + max(1, max_records)]

    @staticmethod
    def _cut(
        first: PlannedBlock, batches: list[RecordBatch], offset: int, max_records: int | None, max_bytes: int
    ) -> FetchedRecords:
        """What was asked for of what the blocks hold. A first block that is larger than a whole read is shared out."""
        each = first.address.length / max(1, first.next_offset - first.first_offset)
        batches[0] = trimmed(batches[0].from_offset(offset), max(1, int(max_bytes / each)))
        if batches[0].next_offset < first.next_offset:
            del batches[1:]
        if max_records is not None:
            before = sum(map(len, batches[:-1]))
            batches[-1] = trimmed(batches[-1], max_records - before)
        return FetchedRecords(batches, batches[-1].next_offset)

    async def _batches(self, plans: Sequence[PlannedBlock]) -> list[RecordBatch]:
        """Up to the first that is damaged; raises if that is the first of all."""
        blocks = await self.cache.get([plan.address for plan in plans])
        batches = [plans[0].open(blocks[0])]
        for plan, block in zip(plans[1:], blocks[1:], strict=False):
            if plan.first_offset != batches[-1].next_offset:
                break  # a gap: the next read begins behind it
            try:
                batches.append(plan.open(block))
            except Exception:
                break  # the next read says what it is
        return batches

    async def _find(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """The segment that holds the offset, or the next one after a gap; None at the end."""
        for look in range(_LOOKS):
            segment = await self._store.find_segment_for_offset(topic, partition_id, offset)
            if segment is not None:
                return segment
            cached = await self._store.get_partition(topic, partition_id)
            if cached is not None and cached.high_watermark == offset and not look:
                return None
            partition = await self._partition(topic, partition_id)
            if offset == partition.high_watermark:
                return None
            if offset > partition.high_watermark:
                raise OffsetBeyondEnd(topic, partition_id, offset, partition.high_watermark)
            following = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=1)
            if following and following[0].base_offset <= offset:
                continue  # it has just come
            first = await self._store.get_segments(topic, partition_id, limit=1)
            if not first or first[0].base_offset > offset:
                start = first[0].base_offset if first else partition.high_watermark
                raise OffsetTooOld(topic, partition_id, offset, start)
            if following:
                return following[0]
            await asyncio.sleep(0)  # the end moved between two questions
        return None

    async def _partition(self, topic: str, partition_id: int) -> Partition:
        """Never from memory."""
        found = await self._store.get_partitions([(topic, partition_id)])
        if not found:
            raise NotFound(f"partition {partition_id} of topic {topic!r} does not exist")
        return found[0]
