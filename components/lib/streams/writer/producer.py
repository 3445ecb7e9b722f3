"""`Producer`: retries appends until they succeed, and never writes one twice.

producer = Producer(writer, clock)
await producer.append("orders", 3, [b"one"])
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from uuid import uuid4

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.lib.streams.errors import AppendFailed, AppendUnknown, Duplicate, NotLeader
from components.lib.streams.format import NewRecord, RecordColumns
from components.lib.streams.writer.accumulator import Appended, AppendId
from components.lib.streams.writer.writer import SegmentWriter
from registry.errors import Unavailable

_BACKOFF = Backoff(initial_s=0.05, max_s=2.0)


class Producer:
    """Appends to one partition are sequential, those to several partitions concurrent.

    With a `producer_id` that outlives the process, each instance needs a higher `epoch` than the one before; the
    default is the time of day. The earlier instance is fenced as soon as this one has written.
    """

    def __init__(
        self, writer: SegmentWriter, clock: LoopClock, *, producer_id: str | None = None, epoch: int | None = None
    ) -> None:
        self.producer_id = producer_id or f"producer-{uuid4().hex}"
        self._writer = writer
        self._clock = clock
        self._epochs: dict[tuple[str, int], int] = defaultdict(lambda: clock.now_ms() if epoch is None else epoch)
        self._next_sequences: dict[tuple[str, int], int] = defaultdict(int)
        self._locks: dict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def append(
        self,
        topic: str,
        partition_id: int,
        records: RecordColumns | Iterable[NewRecord | bytes],
        *,
        timeout_s: float = 60.0,
    ) -> Appended:
        """Raises the errors of `SegmentWriter.append` after the timeout. A cancelled append may be written or not."""
        columns = records if isinstance(records, RecordColumns) else RecordColumns.of(records, self._clock.now_ms())
        key = (topic, partition_id)
        async with self._locks[key]:
            append_id = AppendId(self.producer_id, self._next_sequences[key], self._epochs[key])
            try:
                appended = await self._append_with_retry(key, columns, append_id, self._clock.monotonic() + timeout_s)
            except BaseException:
                # It may be written, so its sequence numbers must not be used for other records.
                self._epochs[key] += 1
                self._next_sequences[key] = 0
                raise
            self._next_sequences[key] += len(columns)
            return appended

    async def _append_with_retry(
        self, key: tuple[str, int], columns: RecordColumns, append_id: AppendId, deadline: float
    ) -> Appended:
        failures = 0
        while True:
            try:
                return await self._writer.append(*key, columns, append_id=append_id)
            except Duplicate:  # impossible for our own retry: the last append is always known
                raise
            except (AppendFailed, AppendUnknown, NotLeader, Unavailable):
                failures += 1
                wait_s = _BACKOFF.wait_s(failures, self._clock)
                if self._clock.monotonic() + wait_s > deadline:
                    raise
                await self._clock.sleep(wait_s)
