"""Micro-batches: which records come next, in bounded portions, and how a micro-batch is recognised in the registry."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from uuid import uuid4

import msgspec

from components.lib.streams.errors import OffsetBeyondEnd, OffsetTooOld
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.inputs import Advance
from registry.models import ConsumerOffset, Partition

_PAGE = 256
_SUMMARIES_KEPT = 4


class MicroBatchSummary(msgspec.Struct, frozen=True):
    """What a micro-batch did, as its own transaction wrote it beside the offset."""

    batch: str
    rows: int
    skipped: int
    files: int


class OffsetNotes(msgspec.Struct, frozen=True):
    """Metadata of a committed offset: the last micro-batches, newest first, so that one is still found after others."""

    table: str
    batches: tuple[MicroBatchSummary, ...] = ()

    @classmethod
    def of(cls, row: ConsumerOffset | None) -> OffsetNotes:
        try:
            return msgspec.json.decode((row and row.metadata) or "", type=cls)
        except msgspec.MsgspecError:  # none, or not ours
            return cls("")


class PartitionRange(msgspec.Struct, frozen=True):
    """Records of one partition. ``start`` is above ``expected``, the group's offset, if records were deleted."""

    partition: int
    expected: int | None
    start: int
    stop: int
    records: int

    @property
    def lost(self) -> int:
        return 0 if self.expected is None else self.start - self.expected


class MicroBatch(msgspec.Struct, frozen=True):
    id: str
    group: str
    topic: str
    table: str
    ranges: tuple[PartitionRange, ...]
    size_bytes: int
    past: tuple[MicroBatchSummary, ...] = ()

    @property
    def records(self) -> int:
        return sum(one.records for one in self.ranges)

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.ranges)

    def offsets(self) -> str:
        """Returns the offsets as the option of a topic scan."""
        return msgspec.json.encode(
            {str(one.partition): (one.start, one.stop) for one in self.ranges if one.records}
        ).decode()

    def advances(self, rows: int, skipped: int, files: int) -> list[Advance]:
        """Returns the new offsets. The first carries the notes."""
        summary = MicroBatchSummary(self.id, rows, skipped, files)
        notes = OffsetNotes(self.table, (summary, *self.past[: _SUMMARIES_KEPT - 1]))
        metadata = msgspec.json.encode(notes).decode()
        return [
            Advance(self.group, self.topic, one.partition, one.expected, one.stop, None if number else metadata)
            for number, one in enumerate(self.ranges)
        ]


class TopicProgress(msgspec.Struct, frozen=True):
    """Where the group is and where the topic ends, read together."""

    committed: Mapping[int, ConsumerOffset]
    partitions: Sequence[Partition]

    def summary(self, batch: MicroBatch) -> MicroBatchSummary | None:
        """Returns its summary, if it was registered and its notes were not overwritten since."""
        notes = OffsetNotes.of(self.committed.get(batch.ranges[0].partition))
        return next((summary for summary in notes.batches if summary.batch == batch.id), None)

    def has_moved(self, batch: MicroBatch) -> bool:
        """Whether the group's offsets have moved, by this micro-batch or another one."""
        found = {number: row.committed_offset for number, row in self.committed.items()}
        return any(found.get(one.partition) != one.expected for one in batch.ranges)

    @property
    def ends(self) -> dict[int, int]:
        return {row.partition_id: row.high_watermark for row in self.partitions}

    def lag(self) -> int:
        """Returns the records after the committed offsets; all records of partitions without a commit."""
        found = self.committed
        return sum(
            max(0, row.high_watermark - (found[row.partition_id].committed_offset if row.partition_id in found else 0))
            for row in self.partitions
        )


async def read_progress(store: MetadataStore, group: str, topic: str) -> TopicProgress:
    try:
        rows = await store.get_consumer_offsets(group)
    except NotFound:
        rows = []
    committed = {row.partition_id: row for row in rows if row.topic == topic}
    return TopicProgress(committed, await store.list_partitions(topic))


class MicroBatchPlanner:
    """``skip_lost``: continue at the first retained record if some were deleted before they were read."""

    def __init__(
        self, store: MetadataStore, group: str, topic: str, table: str, *, max_bytes: int, skip_lost: bool = False
    ) -> None:
        self._store = store
        self._group, self._topic, self._table = group, topic, table
        self._max_bytes = max_bytes
        self._skip_lost = skip_lost

    async def next_batch(self, progress: TopicProgress, stops: Mapping[int, int] | None = None) -> MicroBatch | None:
        """Returns the next records of each partition, up to ``stops`` or the end, or None if there are none: about
        ``max_bytes`` as stored, in whole segments, of all partitions alike.
        """
        cursors = []
        for row in progress.partitions:
            end = row.high_watermark if stops is None else stops.get(row.partition_id, 0)
            found = progress.committed.get(row.partition_id)
            expected = None if found is None else found.committed_offset
            if expected is not None and expected > row.high_watermark:
                raise OffsetBeyondEnd(self._topic, row.partition_id, expected, row.high_watermark)
            if end > (expected or 0):
                cursors.append(_SegmentCursor(self._store, self._topic, row.partition_id, expected, end))
        left = self._max_bytes
        queue = [(0, cursor.partition, cursor) for cursor in cursors]
        while queue and left > 0:
            taken, number, cursor = heapq.heappop(queue)
            size = await cursor.advance()
            if size is not None:
                left -= size
                heapq.heappush(queue, (taken + size, number, cursor))
        ranges = tuple(one for cursor in cursors if (one := self._range(cursor)) is not None)
        if not ranges:
            return None
        size_bytes = sum(cursor.size for cursor in cursors)
        past = OffsetNotes.of(progress.committed.get(ranges[0].partition)).batches
        return MicroBatch(uuid4().hex, self._group, self._topic, self._table, ranges, size_bytes, past)

    def _range(self, cursor: _SegmentCursor) -> PartitionRange | None:
        if cursor.reached is None:
            return None
        found = PartitionRange(cursor.partition, cursor.expected, cursor.start, cursor.reached, cursor.records)
        if found.lost and not self._skip_lost:
            raise OffsetTooOld(self._topic, cursor.partition, cursor.expected or 0, cursor.start)
        return found


class _SegmentCursor:
    """Moves over the segments of a partition."""

    def __init__(self, store: MetadataStore, topic: str, partition: int, expected: int | None, end: int) -> None:
        self._store, self._topic = store, topic
        self.partition = partition
        self.expected = expected
        self.start = expected or 0
        self.reached: int | None = None
        self.records = 0
        self.size = 0
        self._end = end
        self._page: list[tuple[int, int, int]] = []  # first, next, size; last one first

    async def advance(self) -> int | None:
        """Moves over one segment. Returns its size, or None at the end."""
        at = self.start if self.reached is None else self.reached
        if at >= self._end:
            return None
        if not self._page:
            found = await self._store.get_segments(self._topic, self.partition, from_offset=at, limit=_PAGE)
            self._page = [(one.base_offset, one.end_offset + 1, one.size_bytes) for one in reversed(found)]
        if not self._page or self._page[-1][0] >= self._end:
            return self._skip_deleted()
        first, after, size = self._page.pop()
        if self.reached is None:
            at = self.start = max(at, first)
        stop = min(after, self._end)
        self.records += stop - max(at, first)
        self.size += size
        self.reached = stop
        return size

    def _skip_deleted(self) -> int:
        """Moves to the end: all records that are left were deleted."""
        if self.reached is None:
            self.start = self._end
        self.reached = self._end
        return 0
