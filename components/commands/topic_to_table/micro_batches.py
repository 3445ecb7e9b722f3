"""Rounds: which records come next, in bounded portions, and what the registry says of a round afterwards."""

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
_REMEMBERED = 4


class Summary(msgspec.Struct, frozen=True):
    """What became of a round, as its own transaction has written it beside the offset."""

    round: str
    rows: int
    skipped: int
    files: int


class Notes(msgspec.Struct, frozen=True):
    """Metadata of a committed offset: the last rounds, newest first. One that was overtaken at once is still found."""

    table: str
    rounds: tuple[Summary, ...] = ()

    @classmethod
    def of(cls, row: ConsumerOffset | None) -> Notes:
        try:
            return msgspec.json.decode((row and row.metadata) or "", type=cls)
        except msgspec.MsgspecError:  # of somebody else, or none
            return cls("")


class Step(msgspec.Struct, frozen=True):
    """Of one partition: from where the group is to ``stop``. ``start`` is later than that if records were deleted."""

    partition: int
    expected: int | None
    start: int
    stop: int
    records: int

    @property
    def lost(self) -> int:
        return 0 if self.expected is None else self.start - self.expected


class Round(msgspec.Struct, frozen=True):
    id: str
    group: str
    topic: str
    table: str
    steps: tuple[Step, ...]
    size_bytes: int
    past: tuple[Summary, ...] = ()

    @property
    def records(self) -> int:
        return sum(step.records for step in self.steps)

    @property
    def lost(self) -> int:
        return sum(step.lost for step in self.steps)

    def offsets(self) -> str:
        """For the scan."""
        return msgspec.json.encode(
            {str(step.partition): (step.start, step.stop) for step in self.steps if step.records}
        ).decode()

    def advances(self, rows: int, skipped: int, files: int) -> list[Advance]:
        """The first step carries the notes."""
        summary = Summary(self.id, rows, skipped, files)
        notes = Notes(self.table, (summary, *self.past[: _REMEMBERED - 1]))
        metadata = msgspec.json.encode(notes).decode()
        return [
            Advance(self.group, self.topic, step.partition, step.expected, step.stop, None if place else metadata)
            for place, step in enumerate(self.steps)
        ]


class Standing(msgspec.Struct, frozen=True):
    """Where the group is, and where the topic ends, at one look."""

    committed: Mapping[int, ConsumerOffset]
    partitions: Sequence[Partition]

    def summary(self, plan: Round) -> Summary | None:
        """If the round is done, and nobody has written over its notes since."""
        notes = Notes.of(self.committed.get(plan.steps[0].partition))
        return next((summary for summary in notes.rounds if summary.round == plan.id), None)

    def has_moved(self, plan: Round) -> bool:
        """By that round, or by another who was quicker."""
        found = {number: row.committed_offset for number, row in self.committed.items()}
        return any(found.get(step.partition) != step.expected for step in plan.steps)

    @property
    def ends(self) -> dict[int, int]:
        return {row.partition_id: row.high_watermark for row in self.partitions}

    def lag(self) -> int:
        """Records after what is committed; of partitions without a commit, all there ever were."""
        found = self.committed
        return sum(
            max(0, row.high_watermark - (found[row.partition_id].committed_offset if row.partition_id in found else 0))
            for row in self.partitions
        )


async def look(store: MetadataStore, group: str, topic: str) -> Standing:
    try:
        rows = await store.get_consumer_offsets(group)
    except NotFound:
        rows = []
    committed = {row.partition_id: row for row in rows if row.topic == topic}
    return Standing(committed, await store.list_partitions(topic))


class Planner:
    """``skip_lost``: go on at the first record there is if some were deleted before they were read."""

    def __init__(
        self, store: MetadataStore, group: str, topic: str, table: str, *, max_bytes: int, skip_lost: bool = False
    ) -> None:
        self._store = store
        self._group, self._topic, self._table = group, topic, table
        self._max_bytes = max_bytes
        self._skip_lost = skip_lost

    async def plan(self, standing: Standing, stops: Mapping[int, int] | None = None) -> Round | None:
        """The next records of each partition, about ``max_bytes`` of them as stored, in whole segments, up to ``stops``
        or the end. None if there are none. Whichever partition has had the least goes on.
        """
        walks = []
        for row in standing.partitions:
            end = row.high_watermark if stops is None else stops.get(row.partition_id, 0)
            found = standing.committed.get(row.partition_id)
            expected = None if found is None else found.committed_offset
            if expected is not None and expected > row.high_watermark:
                raise OffsetBeyondEnd(self._topic, row.partition_id, expected, row.high_watermark)
            if end > (expected or 0):
                walks.append(_Walk(self._store, self._topic, row.partition_id, expected, end))
        left = self._max_bytes
        queue = [(0, walk.partition, walk) for walk in walks]
        while queue and left > 0:
            taken, number, walk = heapq.heappop(queue)
            size = await walk.advance()
            if size is not None:
                left -= size
                heapq.heappush(queue, (taken + size, number, walk))
        steps = tuple(step for walk in walks if (step := self._step(walk)) is not None)
        if not steps:
            return None
        size_bytes = sum(walk.size for walk in walks)
        past = Notes.of(standing.committed.get(steps[0].partition)).rounds
        return Round(uuid4().hex, self._group, self._topic, self._table, steps, size_bytes, past)

    def _step(self, walk: _Walk) -> Step | None:
        if walk.reached is None:
            return None
        step = Step(walk.partition, walk.expected, walk.start, walk.reached, walk.records)
        if step.lost and not self._skip_lost:
            raise OffsetTooOld(self._topic, walk.partition, walk.expected or 0, walk.start)
        return step


class _Walk:
    """Along the segments of a partition."""

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
        """Over one segment; its size, or None at the end."""
        at = self.start if self.reached is None else self.reached
        if at >= self._end:
            return None
        if not self._page:
            found = await self._store.get_segments(self._topic, self.partition, from_offset=at, limit=_PAGE)
            self._page = [(one.base_offset, one.end_offset + 1, one.size_bytes) for one in reversed(found)]
        if not self._page or self._page[-1][0] >= self._end:
            return self._pass()
        first, after, size = self._page.pop()
        if self.reached is None:
            at = self.start = max(at, first)
        stop = min(after, self._end)
        self.records += stop - max(at, first)
        self.size += size
        self.reached = stop
        return size

    def _pass(self) -> int:
        """All that is left has been deleted."""
        if self.reached is None:
            self.start = self._end
        self.reached = self._end
        return 0
