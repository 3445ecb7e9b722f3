"""`Reader`: records by offset and by time.

The registry's rows locate the blocks that contain an offset, so a read fetches only those: one request per run of
adjacent uncached blocks, and never one for an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.lib.lake.storage.objects import ObjectMissing
from components.lib.streams.change_feed import ChangeFeed, PartitionWatch
from components.lib.streams.errors import OffsetBeyondEnd, OffsetTooOld
from components.lib.streams.format import BLOCK_BYTES, Record, RecordBatch
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, PlannedBlock, SegmentLayout
from registry.errors import NotFound
from registry.models import Partition, Segment

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES = 4 << 20
"""The default limit of one read, as stored."""

_MAX_SEGMENTS = 256  # per read; small segments may be a request each
_MAX_RAW_BYTES = 32 << 20  # decompressed, per read
_MAX_LZ4_RATIO = 255  # LZ4's
_MAX_LOOKUPS = 5  # of a segment in a partition that changes meanwhile
_SCAN_BLOCKS = 4  # fetched together while searching for a timestamp
_POLL_INTERVAL_S = 1.0  # between reads while the change feed is not live
_NOT_VISIBLE_YET = Backoff(initial_s=0.001, max_s=0.25)


class PartitionBounds(msgspec.Struct, frozen=True):
    """The first retained offset, and the next to be written; equal if the partition is empty."""

    start: int
    end: int


class FetchedRecords:
    """Records of one partition, in order, as batches that share the cache's bytes. Empty at the partition's end."""

    __slots__ = ("batches", "next_offset")

    def __init__(self, batches: Sequence[RecordBatch], next_offset: int) -> None:
        self.batches = batches
        self.next_offset = next_offset  # where to read on

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.batches)

    def to_arrow(self) -> pa.Table:
        """Columns ``offset, timestamp, key, value, headers``. All but the offsets are views of the same bytes."""
        import pyarrow as pa

        if not self.batches:
            raise ValueError("no records, hence no columns: check `len` first")
        return pa.Table.from_batches([batch.to_arrow() for batch in self.batches])


class Reader:
    """Safe for concurrent reads. Errors of registry and storage are passed on; both may be retried."""

    def __init__(self, change_feed: ChangeFeed, cache: BlockCache[CachedBlock], clock: LoopClock) -> None:
        self.change_feed = change_feed
        self.cache = cache
        self.clock = clock
        self._store = change_feed.store
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
        """Returns records from the offset on: at least one unless the offset is the end, at most about `max_bytes` as
        stored.

        At the end it waits up to `wait_s` for the next record. OffsetTooOld and OffsetBeyondEnd name the valid offset.
        Corrupt names the object and the range: records before it are returned first, and records after it can be read.
        """
        if wait_s <= 0:
            return await self._read(topic, partition_id, offset, max_records, max_bytes)
        end = self.clock.monotonic() + wait_s
        key = (topic, partition_id)
        with self.change_feed.watch([key]) as watch:
            while True:
                watch.clear()
                found = await self._read(topic, partition_id, offset, max_records, max_bytes)
                left = end - self.clock.monotonic()
                if found.batches or left <= 0:
                    return found
                await self.wait(watch, {key: offset}, left)

    async def wait(self, watch: PartitionWatch, offsets: dict[tuple[str, int], int], timeout_s: float) -> None:
        """Returns when there may be records at one of the offsets, or after the timeout.

        PostgreSQL sends a commit before other sessions see it: if a notified record cannot be found yet, the read is
        repeated with backoff.
        """
        if any(watch.end_offsets.get(key, 0) > offset for key, offset in offsets.items()):
            watch.misses += 1
            await watch.wait(min(_NOT_VISIBLE_YET.wait_s(watch.misses, self.clock), timeout_s))
        else:
            watch.misses = 0
            await watch.wait(timeout_s if self.change_feed.live else min(timeout_s, _POLL_INTERVAL_S))

    async def bounds(self, topic: str, partition_id: int) -> PartitionBounds:
        """Returns the current bounds, as the registry has them."""
        partition = await self._partition(topic, partition_id)
        first = await self._store.get_segments(topic, partition_id, limit=1)
        return PartitionBounds(first[0].base_offset if first else partition.high_watermark, partition.high_watermark)

    async def offset_for_timestamp(self, topic: str, partition_id: int, timestamp: int) -> int | None:
        """Returns the offset of the first record with this timestamp or a later one, or None."""
        segment = await self._store.find_segment_for_timestamp(topic, partition_id, timestamp)
        while segment is not None:
            offset = segment.base_offset
            while offset <= segment.end_offset:
                plans = list(islice(self._layout.blocks(segment, offset), _SCAN_BLOCKS))
                for batch in await self._batches(plans):
                    for number, time in enumerate(batch.timestamps):
                        if time >= timestamp:
                            return batch.first_offset + number
                    offset = batch.next_offset
            following = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=1)
            segment = following[0] if following else None
        return None

    def plan_blocks(self, topic: str, partition_id: int, offset: int, max_bytes: int) -> list[PlannedBlock]:
        """Returns blocks from the offset on that the segment index knows, within `max_bytes` as stored and a bound on
        their decompressed size; at least one if any.
        """
        plans: list[PlannedBlock] = []
        size = raw = 0
        for _ in range(_MAX_SEGMENTS):
            segment = self._store.index.lookup(topic, partition_id, offset)
            if segment is None:
                break
            for block in self._layout.blocks(segment, offset):
                size += block.address.length
                raw += min(BLOCK_BYTES, _MAX_LZ4_RATIO * block.address.length)
                if plans and (size > max_bytes or raw > _MAX_RAW_BYTES):
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
            plans = self._limit_blocks(self.plan_blocks(topic, partition_id, offset, max_bytes), offset, max_records)
            if not plans:  # evicted from the index meanwhile
                plans = [next(self._layout.blocks(found, offset))]
            try:
                batches = await self._batches(plans)
            except ObjectMissing:
                # Merged or deleted, and the event has not arrived: ask the registry.
                if last:
                    raise
                self._store.index.forget(plan.segment for plan in plans)
                continue
            return self._trim(plans[0], batches, offset, max_records, max_bytes)
        raise AssertionError("unreachable")

    @staticmethod
    def _limit_blocks(plans: list[PlannedBlock], offset: int, max_records: int | None) -> list[PlannedBlock]:
        if max_records is None:
            return plans
        return [plan for plan in plans if plan.first_offset < offset + max(1, max_records)]

    @staticmethod
    def _trim(
        first: PlannedBlock, batches: list[RecordBatch], offset: int, max_records: int | None, max_bytes: int
    ) -> FetchedRecords:
        """Trims the batches to the request. A first block that exceeds `max_bytes` is returned in parts."""
        bytes_per_record = first.address.length / max(1, first.next_offset - first.first_offset)
        batches[0] = _truncated(batches[0].from_offset(offset), max(1, int(max_bytes / bytes_per_record)))
        if batches[0].next_offset < first.next_offset:
            del batches[1:]
        if max_records is not None:
            before = sum(map(len, batches[:-1]))
            batches[-1] = _truncated(batches[-1], max_records - before)
        return FetchedRecords(batches, batches[-1].next_offset)

    async def _batches(self, plans: Sequence[PlannedBlock]) -> list[RecordBatch]:
        """Returns batches up to the first damaged block; raises if that is the first one."""
        blocks = await self.cache.get([plan.address for plan in plans])
        batches = [plans[0].open(blocks[0])]
        for plan, block in zip(plans[1:], blocks[1:], strict=False):
            if plan.first_offset != batches[-1].next_offset:
                break  # a gap: the next read starts behind it
            try:
                batches.append(plan.open(block))
            except Exception:
                break  # the next read raises it
        return batches

    async def _find(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """Returns the segment that contains the offset, or the next one after a gap; None at the end."""
        for attempt in range(_MAX_LOOKUPS):
            segment = await self._store.find_segment_for_offset(topic, partition_id, offset)
            if segment is not None:
                return segment
            cached = await self._store.get_partition(topic, partition_id)
            if cached is not None and cached.high_watermark == offset and not attempt:
                return None
            partition = await self._partition(topic, partition_id)
            if offset == partition.high_watermark:
                return None
            if offset > partition.high_watermark:
                raise OffsetBeyondEnd(topic, partition_id, offset, partition.high_watermark)
            following = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=1)
            if following and following[0].base_offset <= offset:
                continue  # registered meanwhile
            first = await self._store.get_segments(topic, partition_id, limit=1)
            if not first or first[0].base_offset > offset:
                start = first[0].base_offset if first else partition.high_watermark
                raise OffsetTooOld(topic, partition_id, offset, start)
            if following:
                return following[0]
            await asyncio.sleep(0)  # the end moved between two queries
        return None

    async def _partition(self, topic: str, partition_id: int) -> Partition:
        """Bypasses the cache."""
        found = await self._store.get_partitions([(topic, partition_id)])
        if not found:
            raise NotFound(f"partition {partition_id} of topic {topic!r} does not exist")
        return found[0]


def _truncated(batch: RecordBatch, most: int | None) -> RecordBatch:
    """Returns at most `most` of the first records, and at least one."""
    return batch if most is None or len(batch) <= most else batch[: max(1, most)]
