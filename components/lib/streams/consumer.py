"""`Consumer`: reads partitions of a topic in turn and commits offsets for a group."""

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
from components.lib.streams.offsets import GroupOffsets, OffsetReset, boundary_offsets
from components.lib.streams.reader.prefetch import Cursor, Prefetcher
from components.lib.streams.reader.reader import MAX_BYTES, FetchedRecords

log = structlog.get_logger(__name__)

_NO_STOP = 1 << 63


class PolledRecords(msgspec.Struct, frozen=True):
    partition_id: int
    records: FetchedRecords


class Consumer:
    """``async with``. Polls partitions in turn, so that none starves; at the end of all of them it waits for new
    records.

    `stop_offsets` are exclusive ends per partition. `reset` says where to continue when records were deleted before
    they were read; without it, OffsetTooOld is raised.
    """

    def __init__(
        self,
        prefetcher: Prefetcher,
        topic: str,
        offsets: Mapping[int, int],
        *,
        group: str | None = None,
        reset: OffsetReset | None = None,
        stop_offsets: Mapping[int, int] | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self.skipped = 0  # records deleted before they were read
        self._prefetcher = prefetcher
        self._reader = prefetcher.reader
        self._store = prefetcher.reader.change_feed.store
        self._reset = reset
        self._stop_offsets = dict(stop_offsets or {})
        self._cursors = {
            number: Cursor(prefetcher, topic, number, offset) for number, offset in sorted(offsets.items())
        }
        # Partitions that may have records, in the order of their turns.
        self._ready: OrderedDict[int, None] = OrderedDict.fromkeys(self._cursors)
        self._at_high_watermark: set[int] = set()  # partitions read to their end; later records are notified
        self._seen_gaps = -1  # gaps of the watch that were handled
        self._prefetches: set[asyncio.Task[None]] = set()
        self._committed = dict(offsets)
        self._stack = ExitStack()
        self._watch = PartitionWatch()

    async def __aenter__(self) -> Self:
        self._start_watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for prefetch in self._prefetches:
            prefetch.cancel()
        await asyncio.gather(*self._prefetches, return_exceptions=True)
        for cursor in self._cursors.values():
            await cursor.close()

    @property
    def offsets(self) -> dict[int, int]:
        """The offset of the next record per partition."""
        return {number: cursor.offset for number, cursor in self._cursors.items()}

    @property
    def done(self) -> bool:
        """Whether every partition has reached its stop offset."""
        return all(
            cursor.offset >= self._stop_offsets.get(number, _NO_STOP) for number, cursor in self._cursors.items()
        )

    async def assign(self, offsets: Mapping[int, int]) -> None:
        """Replaces the partitions to read, each with its offset."""
        removed = [cursor for number, cursor in self._cursors.items() if offsets.get(number) != cursor.offset]
        for cursor in removed:
            del self._cursors[cursor.partition_id]
            self._committed.pop(cursor.partition_id, None)
        for number, offset in sorted(offsets.items()):
            if number not in self._cursors:
                self._cursors[number] = Cursor(self._prefetcher, self.topic, number, offset)
                self._committed[number] = offset
        self._start_watch()
        for cursor in removed:
            await cursor.close()

    async def poll(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> PolledRecords | None:
        """Returns records of the next partition that has some, or None if none has any within `wait_s`."""
        if self.done:
            return None
        clock = self._reader.clock
        end = clock.monotonic() + wait_s
        while True:
            self._watch.clear()
            found = await self._poll_once(max_records, max_bytes)
            left = end - clock.monotonic()
            if found is not None or left <= 0:
                return found
            offsets = {(self.topic, number): self._cursors[number].offset for number in self._ready}
            await self._reader.wait(self._watch, offsets, left)

    async def commit(self) -> None:
        """Commits the offsets behind all polled records. Writes only partitions that have moved."""
        moved = {number: offset for number, offset in self.offsets.items() if self._committed.get(number) != offset}
        if self.group is None or not moved:
            return
        await GroupOffsets(self._store).commit(self.group, self.topic, moved)
        self._committed.update(moved)

    def _start_watch(self) -> None:
        """Watches the current partitions. All are checked again: the previous watch may have had notifications."""
        self._stack.close()
        keys = [(self.topic, number) for number in self._cursors]
        self._watch = self._stack.enter_context(self._reader.change_feed.watch(keys))
        self._seen_gaps = self._watch.gaps
        self._at_high_watermark.clear()
        turn = [number for number in self._ready if number in self._cursors]
        self._ready = OrderedDict.fromkeys([*turn, *self._cursors])

    async def _poll_once(self, max_records: int | None, max_bytes: int) -> PolledRecords | None:
        await self._apply_notifications()
        for _ in range(len(self._ready)):
            number = next(iter(self._ready))
            records = None if self._is_exhausted(number) else await self._next(number, max_records, max_bytes)
            if self._is_exhausted(number):
                del self._ready[number]
            else:
                self._ready.move_to_end(number)
            if records is not None and records.batches:
                return PolledRecords(number, records)
        return None

    async def _apply_notifications(self) -> None:
        """Marks notified partitions as ready, and prefetches their blocks together."""
        if self._seen_gaps != self._watch.gaps or not self._reader.change_feed.live:
            await self._refresh_high_watermarks()
        changed = [number for _, number in self._watch.take_changed() if not self._is_exhausted(number)]
        self._ready.update(dict.fromkeys(changed))
        if len(changed) > 1:
            offsets = [(number, self._cursors[number].offset) for number in changed]
            prefetch = self._prefetcher.start(self.topic, offsets)
            if prefetch is not None:
                self._prefetches.add(prefetch)
                prefetch.add_done_callback(self._prefetches.discard)

    async def _refresh_high_watermarks(self) -> None:
        """After a gap: one query tells which partitions are at their end."""
        gaps = self._watch.gaps
        self._at_high_watermark.clear()
        self._ready.update(dict.fromkeys(self._cursors))
        if self._reader.change_feed.live:
            rows = await self._store.get_partitions([(self.topic, number) for number in self._cursors])
            self._at_high_watermark = {
                row.partition_id for row in rows if row.high_watermark == self._offset(row.partition_id)
            }
        self._seen_gaps = gaps

    def _offset(self, number: int) -> int:
        return self._cursors[number].offset

    def _is_exhausted(self, number: int) -> bool:
        """Whether the partition has no unread records, as far as notifications tell."""
        offset = self._cursors[number].offset
        if offset >= self._stop_offsets.get(number, _NO_STOP):
            return True
        return number in self._at_high_watermark and self._watch.end_offsets.get((self.topic, number), 0) <= offset

    async def _next(self, number: int, max_records: int | None, max_bytes: int) -> FetchedRecords:
        cursor, gaps = self._cursors[number], self._watch.gaps
        while True:
            try:
                records = await cursor.next(max_records=max_records, max_bytes=max_bytes)
            except OffsetTooOld as error:
                if self._reset is None:
                    raise
                start = (await boundary_offsets(self._store, self.topic, [number], self._reset))[number]
                self.skipped += max(0, start - cursor.offset)
                log.warning(
                    "skipped records that were deleted before they were read",
                    partition=number,
                    error=str(error),
                    offset=start,
                )
                cursor.seek(start)
            else:
                break
        if records.batches:
            return self._truncate(cursor, records)
        if gaps == self._watch.gaps and self._reader.change_feed.live:
            self._at_high_watermark.add(number)
        return records

    def _truncate(self, cursor: Cursor, records: FetchedRecords) -> FetchedRecords:
        stop = self._stop_offsets.get(cursor.partition_id, _NO_STOP)
        if records.next_offset <= stop:
            return records
        cursor.seek(stop)
        kept = [batch[: max(0, stop - batch.first_offset)] for batch in records.batches]
        return FetchedRecords([batch for batch in kept if len(batch)], stop)
