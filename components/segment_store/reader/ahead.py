"""Read-ahead: while a consumer works on its records, the next blocks come.

Only for blocks of which memory knows, never in a queue: what does not fit into the bounds just now is left to the
consumer's own next read. So it takes nothing from those who wait for a block.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from components.segment_store.reader.blocks import BlockPlan
from components.segment_store.reader.reader import MAX_BYTES, Reader
from components.segment_store.reader.records import Records


@dataclass(frozen=True, slots=True)
class AheadPolicy:
    """Bytes as they are in storage. Zero for none."""

    consumer_bytes: int = 8 << 20
    consumer_blocks: int = 32  # small ones, each of which may be a request
    total_bytes: int = 64 << 20


class ReadAhead:
    """One a process: what all of its consumers have fetched ahead of them at the same time is bounded."""

    def __init__(self, reader: Reader, policy: AheadPolicy | None = None) -> None:
        self.reader = reader
        self.policy = policy or AheadPolicy()
        self.in_flight_bytes = 0

    def begin(self, topic: str, partition_id: int, offset: int) -> asyncio.Task[None] | None:
        """None if there is nothing to fetch, or no room for it."""
        cache = self.reader.cache
        plans = self.reader.plan(topic, partition_id, offset, self.policy.consumer_bytes)
        wanted: list[BlockPlan] = []
        size = 0
        for plan in plans[: self.policy.consumer_blocks]:
            if plan.address in cache:
                continue
            size += plan.address.length
            if size > self.policy.consumer_bytes or self.in_flight_bytes + size > self.policy.total_bytes:
                size -= plan.address.length
                break
            wanted.append(plan)
        if not wanted:
            return None
        task = asyncio.create_task(self._fetch(wanted), name="read-ahead")
        self.in_flight_bytes += size  # from now on, not when it starts: others may begin before
        task.add_done_callback(lambda _: self._landed(size))
        return task

    async def _fetch(self, plans: list[BlockPlan]) -> None:
        await self.reader.cache.prefetch([plan.address for plan in plans])

    def _landed(self, size: int) -> None:
        self.in_flight_bytes -= size


class Cursor:
    """Reads a partition from front to back. One read at a time."""

    def __init__(self, ahead: ReadAhead, topic: str, partition_id: int, offset: int) -> None:
        self.topic = topic
        self.partition_id = partition_id
        self.offset = offset  # of the next record
        self._ahead = ahead
        self._fetching: asyncio.Task[None] | None = None

    async def next(self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0) -> Records:
        """As `Reader.read`; the cursor moves behind what it answers."""
        found = await self._ahead.reader.read(
            self.topic, self.partition_id, self.offset, max_records=max_records, max_bytes=max_bytes, wait_s=wait_s
        )
        self.offset = found.next_offset
        if found.batches and (self._fetching is None or self._fetching.done()):
            self._fetching = self._ahead.begin(self.topic, self.partition_id, self.offset)
        return found

    def seek(self, offset: int) -> None:
        self.offset = offset

    async def close(self) -> None:
        """What was fetched ahead stays in the cache."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
