"""`Consumer`: the partitions of a topic, in turn, with a group that remembers where it was."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec
import structlog

from components.lib.streams.change_feed import PartitionWatch
from components.lib.streams.errors import OffsetTooOld
from components.lib.streams.offsets import ConsumerGroups, OffsetReset, boundary_offsets
from components.lib.streams.reader.prefetch import Cursor, Prefetcher
from components.lib.streams.reader.reader import MAX_BYTES
from components.lib.streams.reader.records import FetchedRecords

log = structlog.get_logger(__name__)

_NEVER = 1 << 63


class PolledRecords(msgspec.Struct, frozen=True):
    partition_id: int
    records: FetchedRecords


class Consumer:
    """``async with``. Partitions take turns, so that none starves; at the end of all of them it waits for news of any.

    ``stops`` are offsets at which partitions end for this consumer. ``reset`` says where to go on when records were
    deleted before they were read; without, OffsetTooOld is raised.
    """

    def __init__(
        self,
        ahead: Prefetcher,
        topic: str,
        offsets: Mapping[int, int],
        *,
        group: str | None = None,
        reset: OffsetReset | None = None,
        stops: Mapping[int, int] | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self.skipped = 0  # records that were deleted before they were read
        self._ahead = ahead
        self._reader = ahead.reader
        self._store = ahead.reader.feed.store
        self._reset = reset
        self._stops = dict(stops or {})
        self._cursors = {number: Cursor(ahead, topic, number, offset) for number, offset in sorted(offsets.items())}
        self._ready: OrderedDict[int, None] = OrderedDict.fromkeys(self._cursors)  # may have something, in turn
        self._ended: set[int] = set()  # have been at their end: whatever came since was told
        self._lost = -1  # times that news had been lost by then
        self._fetching: set[asyncio.Task[None]] = set()
        self._committed = dict(offsets)
        self._stack = ExitStack()
        self._watch = PartitionWatch()

    async def __aenter__(self) -> Self:
        self._begin_watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for fetching in self._fetching:
            fetching.cancel()
        await asyncio.gather(*self._fetching, return_exceptions=True)
        for cursor in self._cursors.values():
            await cursor.close()

    @property
    def offsets(self) -> dict[int, int]:
        """Of the next record of each partition."""
        return {number: cursor.offset for number, cursor in self._cursors.items()}

    @property
    def done(self) -> bool:
        """Every partition has come to its stop."""
        return all(cursor.offset >= self._stops.get(number, _NEVER) for number, cursor in self._cursors.items())

    async def assign(self, offsets: Mapping[int, int]) -> None:
        """Reads these partitions from now on, each at its offset, and no others."""
        gone = [cursor for number, cursor in self._cursors.items() if offsets.get(number) != cursor.offset]
        for cursor in gone:
            del self._cursors[cursor.partition_id]
            self._committed.pop(cursor.partition_id, None)
        for number, offset in sorted(offsets.items()):
            if number not in self._cursors:
                self._cursors[number] = Cursor(self._ahead, self.topic, number, offset)
                self._committed[number] = offset
        self._begin_watch()
        for cursor in gone:
            await cursor.close()

    async def poll(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> PolledRecords | None:
        """Records of the next partition that has some; None if none has any within ``wait_s``."""
        if self.done:
            return None
        clock = self._reader.clock
        end = clock.monotonic() + wait_s
        while True:
            self._watch.clear()
            found = await self._look(max_records, max_bytes)
            left = end - clock.monotonic()
            if found is not None or left <= 0:
                return found
            offsets = {(self.topic, number): self._cursors[number].offset for number in self._ready}
            await self._reader.wait(self._watch, offsets, left)

    async def commit(self) -> None:
        """What `poll` has answered so far is done. Only partitions that have moved are written."""
        moved = {number: offset for number, offset in self.offsets.items() if self._committed.get(number) != offset}
        if self.group is None or not moved:
            return
        await ConsumerGroups(self._store).commit(self.group, self.topic, moved)
        self._committed.update(moved)

    def _begin_watch(self) -> None:
        """Whatever was told to the one before is looked for again."""
        self._stack.close()
        keys = [(self.topic, number) for number in self._cursors]
        self._watch = self._stack.enter_context(self._reader.feed.watch(keys))
        self._lost = self._watch.lost
        self._ended.clear()
        turn = [number for number in self._ready if number in self._cursors]
        self._ready = OrderedDict.fromkeys([*turn, *self._cursors])

    async def _look(self, max_records: int | None, max_bytes: int) -> PolledRecords | None:
        await self._hear()
        for _ in range(len(self._ready)):
            number = next(iter(self._ready))
            records = None if self._at_end(number) else await self._next(number, max_records, max_bytes)
            if self._at_end(number):
                del self._ready[number]
            else:
                self._ready.move_to_end(number)
            if records is not None and records.batches:
                return PolledRecords(number, records)
        return None

    async def _hear(self) -> None:
        """What was told since: those partitions may have something, and their blocks are fetched together."""
        if self._lost != self._watch.lost or not self._reader.feed.followed:
            await self._compare()
        told = [number for _, number in self._watch.take() if not self._at_end(number)]
        self._ready.update(dict.fromkeys(told))
        if len(told) > 1:
            fetching = self._ahead.begin(self.topic, [(number, self._cursors[number].offset) for number in told])
            if fetching is not None:
                self._fetching.add(fetching)
                fetching.add_done_callback(self._fetching.discard)

    async def _compare(self) -> None:
        """Nothing is known of any partition: one question says which of them are at their ends."""
        lost = self._watch.lost
        self._ended.clear()
        self._ready.update(dict.fromkeys(self._cursors))
        if self._reader.feed.followed:
            rows = await self._store.get_partitions([(self.topic, number) for number in self._cursors])
            self._ended = {row.partition_id for row in rows if row.high_watermark == self._offset(row.partition_id)}
        self._lost = lost

    def _offset(self, number: int) -> int:
        return self._cursors[number].offset

    def _at_end(self, number: int) -> bool:
        """Known to have nothing: it was at its end, and what was told since has been read."""
        offset = self._cursors[number].offset
        if offset >= self._stops.get(number, _NEVER):
            return True
        return number in self._ended and self._watch.ends.get((self.topic, number), 0) <= offset

    async def _next(self, number: int, max_records: int | None, max_bytes: int) -> FetchedRecords:
        cursor, lost = self._cursors[number], self._watch.lost
        while True:
            try:
                records = await cursor.next(max_records=max_records, max_bytes=max_bytes)
            except OffsetTooOld as error:
                if self._reset is None:
                    raise
                start = (await boundary_offsets(self._store, self.topic, [number], self._reset))[number]
                self.skipped += max(0, start - cursor.offset)
                log.warning("records were deleted before they were read", partition=number, error=str(error), at=start)
                cursor.seek(start)
            else:
                break
        if records.batches:
            return self._stopped(cursor, records)
        if lost == self._watch.lost and self._reader.feed.followed:
            self._ended.add(number)
        return records

    def _stopped(self, cursor: Cursor, records: FetchedRecords) -> FetchedRecords:
        stop = self._stops.get(cursor.partition_id, _NEVER)
        if records.next_offset <= stop:
            return records
        cursor.seek(stop)
        kept = [batch[: max(0, stop - batch.first_offset)] for batch in records.batches]
        return FetchedRecords([batch for batch in kept if len(batch)], stop)
