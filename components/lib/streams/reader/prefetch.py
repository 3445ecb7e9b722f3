"""Prefetching: the next blocks are fetched while a consumer processes its records.

Only blocks that the segment index in memory knows are prefetched, and nothing is queued: what exceeds the bounds is
left to the consumer's next read. So prefetching takes no capacity from readers that wait for a block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from astha.byte_semaphore import ByteSemaphore
from components.lib.streams.reader.blocks import PlannedBlock
from components.lib.streams.reader.reader import MAX_BYTES, FetchedRecords, Reader


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """Bytes as stored. Zero turns prefetching off."""

    consumer_bytes: int = 8 << 20
    consumer_blocks: int = 32  # of one partition; small blocks may be a request each
    shared_blocks: int = 10_000  # of several partitions, which are adjacent in their objects
    total_bytes: int = 64 << 20


class Prefetcher:
    """One per process: it bounds what all consumers prefetch at the same time."""

    def __init__(self, reader: Reader, policy: PrefetchPolicy | None = None) -> None:
        self.reader = reader
        self.policy = policy or PrefetchPolicy()
        self._in_flight = ByteSemaphore(self.policy.total_bytes)

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight.acquired

    def start(self, topic: str, offsets: Iterable[tuple[int, int]]) -> asyncio.Task[None] | None:
        """Prefetches from these (partition, offset) pairs on. Returns None if there is nothing to fetch within the
        bounds.

        Partitions share objects: adjacent blocks are one request, whatever their partitions.
        """
        policy, positions = self.policy, list(offsets)
        max_blocks = policy.consumer_blocks if len(positions) == 1 else policy.shared_blocks
        wanted: list[PlannedBlock] = []
        size = 0
        for partition_id, offset in positions:
            left = min(policy.consumer_bytes, self._in_flight.available) - size
            if left <= 0 or len(wanted) >= max_blocks:
                break
            for plan in self._uncached(topic, partition_id, offset, left, max_blocks - len(wanted)):
                wanted.append(plan)
                size += plan.address.length
        # Acquired now, not when the task starts: another call may come before.
        if not wanted or not self._in_flight.try_acquire(size):
            return None
        fetching = self.reader.cache.prefetch([plan.address for plan in wanted])
        task = asyncio.create_task(fetching, name="prefetch")
        task.add_done_callback(lambda _: self._in_flight.release(size))
        return task

    def _uncached(
        self, topic: str, partition_id: int, offset: int, max_bytes: int, max_blocks: int
    ) -> list[PlannedBlock]:
        """Returns the first blocks of one partition that are not in memory, within the bounds."""
        cache, found = self.reader.cache, []
        for plan in self.reader.plan_blocks(topic, partition_id, offset, max_bytes)[:max_blocks]:
            if plan.address not in cache:
                max_bytes -= plan.address.length
                if max_bytes < 0:
                    break
                found.append(plan)
        return found


class Cursor:
    """Reads a partition sequentially, one read at a time."""

    def __init__(self, prefetcher: Prefetcher, topic: str, partition_id: int, offset: int) -> None:
        self.topic = topic
        self.partition_id = partition_id
        self.offset = offset  # of the next record
        self._prefetcher = prefetcher
        self._prefetch: asyncio.Task[None] | None = None

    async def next(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> FetchedRecords:
        """Same as `Reader.read`; moves the cursor behind the returned records."""
        found = await self._prefetcher.reader.read(
            self.topic, self.partition_id, self.offset, max_records=max_records, max_bytes=max_bytes, wait_s=wait_s
        )
        self.offset = found.next_offset
        if found.batches and (self._prefetch is None or self._prefetch.done()):
            self._prefetch = self._prefetcher.start(self.topic, [(self.partition_id, self.offset)])
        return found

    def seek(self, offset: int) -> None:
        self.offset = offset

    async def close(self) -> None:
        """Prefetched blocks stay in the cache."""
        if self._prefetch is not None:
            self._prefetch.cancel()
            await asyncio.gather(self._prefetch, return_exceptions=True)
