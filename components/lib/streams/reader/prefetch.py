"""Read-ahead: while a consumer works on its records, the next blocks come.

Only for blocks of which memory knows, never in a queue: what does not fit into the bounds just now is left to the
consumer's own next read. So it takes nothing from those who wait for a block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from components.lib.streams.reader.blocks import PlannedBlock
from components.lib.streams.reader.reader import MAX_BYTES, Reader
from components.lib.streams.reader.records import FetchedRecords


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """Bytes as they are in storage. Zero for none."""

    consumer_bytes: int = 8 << 20
    consumer_blocks: int = 32  # small ones, each of which may be a request
    shared_blocks: int = 10_000  # of many partitions, which are neighbours in their objects
    total_bytes: int = 64 << 20


class Prefetcher:
    """One a process: what all of its consumers have fetched ahead of them at the same time is bounded."""

    def __init__(self, reader: Reader, policy: PrefetchPolicy | None = None) -> None:
        self.reader = reader
        self.policy = policy or PrefetchPolicy()
        self.in_flight_bytes = 0

    def begin(self, topic: str, offsets: Iterable[tuple[int, int]]) -> asyncio.Task[None] | None:
        """From these partitions' offsets on. None if there is nothing to fetch, or no room for it.

        Partitions share objects: what is neighbours there is one request, whosever it is.
        """
        policy, places = self.policy, list(offsets)
        most = policy.consumer_blocks if len(places) == 1 else policy.shared_blocks
        wanted: list[PlannedBlock] = []
        size = 0
        for partition_id, offset in places:
            left = min(policy.consumer_bytes, policy.total_bytes - self.in_flight_bytes) - size
            if left <= 0 or len(wanted) >= most:
                break
            for plan in self._missing(topic, partition_id, offset, left, most - len(wanted)):
                wanted.append(plan)
                size += plan.address.length
        if not wanted:
            return None
        fetching = self.reader.cache.prefetch([plan.address for plan in wanted])
        task = asyncio.create_task(fetching, name="read-ahead")
        self.in_flight_bytes += size  # from now on, not when it starts: others may begin before
        task.add_done_callback(lambda _: self._landed(size))
        return task

    def _missing(self, topic: str, partition_id: int, offset: int, most_bytes: int, most: int) -> list[PlannedBlock]:
        """The first blocks of one partition that are not in memory, as far as they fit."""
        cache, found = self.reader.cache, []
        for plan in self.reader.plan(topic, partition_id, offset, most_bytes)[:most]:
            if plan.address not in cache:
                most_bytes -= plan.address.length
                if most_bytes < 0:
                    break
                found.append(plan)
        return found

    def _landed(self, size: int) -> None:
        self.in_flight_bytes -= size


class Cursor:
    """Reads a partition from front to back. One read at a time."""

    def __init__(self, ahead: Prefetcher, topic: str, partition_id: int, offset: int) -> None:
        self.topic = topic
        self.partition_id = partition_id
        self.offset = offset  # of the next record
        self._ahead = ahead
        self._fetching: asyncio.Task[None] | None = None

    async def next(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> FetchedRecords:
        """As `Reader.read`; the cursor moves behind what it answers."""
        found = await self._ahead.reader.read(
            self.topic, self.partition_id, self.offset, max_records=max_records, max_bytes=max_bytes, wait_s=wait_s
        )
        self.offset = found.next_offset
        if found.batches and (self._fetching is None or self._fetching.done()):
            self._fetching = self._ahead.begin(self.topic, [(self.partition_id, self.offset)])
        return found

    def seek(self, offset: int) -> None:
        self.offset = offset

    async def close(self) -> None:
        """What was fetched ahead stays in the cache."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
