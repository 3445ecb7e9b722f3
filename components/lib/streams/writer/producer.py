"""`Producer`: appends that are repeated until they are answered, and never written twice.

producer = Producer(writer, clock)
await producer.append("orders", 3, [b"one"])
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from uuid import uuid4

from astha.clock import LoopClock
from components.lib.streams.errors import AppendFailed, AppendUnknown, Duplicate, NotLeader
from components.lib.streams.format import Columns, NewRecord
from components.lib.streams.writer.accumulator import Appended, AppendId
from components.lib.streams.writer.writer import SegmentWriter
from registry.errors import Unavailable

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


class Producer:
    """Appends of one partition go one after the other, those of several at the same time.

    With a ``producer_id`` that outlives the process, each instance needs a higher ``epoch`` than the one before: the
    time of day, unless it is given. The earlier one can't write any more as soon as this one has.
    """

    def __init__(
        self, writer: SegmentWriter, clock: LoopClock, *, producer_id: str | None = None, epoch: int | None = None
    ) -> None:
        self.producer_id = producer_id or f"producer-{uuid4().hex}"
        self._writer = writer
        self._clock = clock
        self._epochs: dict[tuple[str, int], int] = defaultdict(lambda: clock.now_ms() if epoch is None else epoch)
        self._next: dict[tuple[str, int], int] = defaultdict(int)
        self._turns: dict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def append(
        self,
        topic: str,
        partition_id: int,
        records: Columns | Iterable[NewRecord | bytes],
        *,
        timeout_s: float = 60.0,
    ) -> Appended:
        """Errors are those of `SegmentWriter.append`, after the timeout. Cancelled, it may be written or not."""
        columns = records if isinstance(records, Columns) else Columns.of(records, self._clock.now_ms())
        key = (topic, partition_id)
        async with self._turns[key]:
            stamp = AppendId(self.producer_id, self._next[key], self._epochs[key])
            try:
                appended = await self._insist(key, columns, stamp, self._clock.monotonic() + timeout_s)
            except BaseException:
                # Whether it was written is unknown: its numbers must not be given to other records.
                self._epochs[key] += 1
                self._next[key] = 0
                raise
            self._next[key] += len(columns)
            return appended

    async def _insist(self, key: tuple[str, int], columns: Columns, stamp: AppendId, deadline: float) -> Appended:
        wait = _FIRST_WAIT_S
        while True:
            try:
                return await self._writer.append(*key, columns, stamp=stamp)
            except Duplicate:  # only we have its numbers, and the last append is always known
                raise
            except (AppendFailed, AppendUnknown, NotLeader, Unavailable):
                if self._clock.monotonic() + wait > deadline:
                    raise
                await self._clock.sleep(wait * (0.5 + 0.5 * self._clock.chance()))
                wait = min(_LONGEST_WAIT_S, wait * 2)
