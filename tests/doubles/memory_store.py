"""An in-memory store that keeps its history, so that a test can delay a read or let it see an earlier state.

It has the verbs on topics, partitions and segments; the others fail.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from astha.events import Commit, Event, Operation
from registry.contract import PAGE, MetadataStore
from registry.errors import AlreadyExists, NotFound
from registry.forwarding import ForwardingStore
from registry.inputs import Fence, ProducerDraft, SegmentDraft
from registry.json_text import JsonValue, to_json_text
from registry.models import Partition, Row, Segment, Topic
from registry.position import Position

T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """The registry's rows after one commit."""

    topics: dict[str, Topic] = field(default_factory=dict)
    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)


class Gate:
    """Holds results back: the read has happened, but its caller does not have the result yet."""

    def __init__(self) -> None:
        self.waiting = 0
        self._arrived = asyncio.Condition()
        self._open = asyncio.Event()

    async def reached(self, callers: int = 1) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.waiting >= callers)

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        async with self._arrived:
            self.waiting += 1
            self._arrived.notify_all()
        await self._open.wait()


class MemoryStore(ForwardingStore):
    """Commit ``n`` is at position ``n``. ``changes`` lists what was committed, for a test to deliver.

    ``visible`` set to a position makes reads see the state of that time, as PostgreSQL does between sending a
    commit to the stream and showing it to other sessions.
    """

    def __init__(self) -> None:
        super().__init__(cast("MetadataStore", None))
        self.states: list[State] = [State()]
        self.changes: list[Event[Row]] = []
        self.calls: Counter[str] = Counter()
        self.gates: dict[str, Gate] = {}
        self.failures: dict[str, BaseException] = {}
        self.visible: int | None = None
        self.closed = False
        self._ids = 0

    @property
    def state(self) -> State:
        return self.states[-1]

    def hold(self, verb: str) -> Gate:
        """Holds back the results of later calls of a verb, until `Gate.open`."""
        self.gates[verb] = Gate()
        return self.gates[verb]

    def release(self, verb: str) -> None:
        self.gates.pop(verb).open()

    async def _read(self, verb: str, read: Callable[[State], T]) -> T:
        self.calls[verb] += 1
        answer = read(self.states[-1 if self.visible is None else self.visible])
        gate = self.gates.get(verb)
        if gate is not None:
            await gate.passed()
        failure = self.failures.get(verb)
        if failure is not None:
            raise failure
        await asyncio.sleep(0)
        return answer

    def commit(self, *rows: tuple[Row | None, Row | None]) -> list[Event[Row]]:
        """Commits rows, given as before and after, in one transaction."""
        state = State(dict(self.state.topics), dict(self.state.partitions), dict(self.state.segments))
        number = len(self.states)
        commit = Commit(number, Position(number), number, len(rows))
        changes: list[Event[Row]] = []
        for before, data in rows:
            row = data or before
            assert row is not None
            table = cast("dict[object, Row]", getattr(state, row.table))
            key: object = tuple(getattr(row, name) for name in row.key)
            if len(row.key) == 1:
                key = getattr(row, row.key[0])
            if data is None:
                del table[key]
            else:
                table[key] = data
            operation = Operation.DELETE if data is None else Operation.UPDATE if before else Operation.INSERT
            changes.append(Event(operation, row, before, commit, len(changes)))
        self.states.append(state)
        self.changes += changes
        return changes

    def segment(self, topic: str, partition_id: int, base: int, end: int, number: int | None = None) -> Segment:
        """Returns a row with the next id, or with ``number``."""
        self._ids += 1
        number = number or self._ids
        return Segment(
            id=number, topic=topic, partition_id=partition_id, base_offset=base, end_offset=end,
            record_count=end - base + 1, size_bytes=100, s3_bucket="bucket", s3_key=f"key-{number}",
            byte_offset=0, created_at=number,
        )  # fmt: skip

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        *,
        retention_ms: int | None = None,
        config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:
        if name in self.state.topics:
            raise AlreadyExists(name)
        now = len(self.states)
        topic = Topic(name, partition_count, retention_ms, to_json_text(config or {}), now, now)
        self.commit(
            (None, topic),
            *((None, Partition(name, number, 0, now, now)) for number in range(partition_count)),
        )
        return await self._read("create_topic", lambda _: topic)

    async def delete_topic(self, name: str) -> None:
        if name not in self.state.topics:
            raise NotFound(name)
        self.commit(
            *((row, None) for row in self.state.segments.values() if row.topic == name),
            *((row, None) for row in self.state.partitions.values() if row.topic == name),
            (self.state.topics[name], None),
        )
        await self._read("delete_topic", lambda _: None)

    async def get_topic(self, name: str) -> Topic | None:
        return await self._read("get_topic", lambda state: state.topics.get(name))

    async def list_topics(self) -> list[Topic]:
        return await self._read("list_topics", lambda state: sorted(state.topics.values(), key=lambda row: row.name))

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        old = self.state.topics[name]
        new = Topic(name, old.partition_count, retention_ms, to_json_text(config), old.created_at, len(self.states))
        self.commit((old, new))
        return await self._read("update_topic_config", lambda _: new)

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None:
        return await self._read("get_partition", lambda state: state.partitions.get((topic, partition_id)))

    async def list_partitions(self, topic: str) -> list[Partition]:
        def read(state: State) -> list[Partition] | None:
            if topic not in state.topics:
                return None
            return sorted(
                (row for row in state.partitions.values() if row.topic == topic),
                key=lambda row: row.partition_id,
            )

        rows = await self._read("list_partitions", read)
        if rows is None:
            raise NotFound(topic)
        return rows

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        old = self.state.partitions[topic, partition_id]
        new = Partition(topic, partition_id, max(high_watermark, old.high_watermark), old.created_at, len(self.states))
        self.commit((old, new))
        return await self._read("update_high_watermark", lambda _: new)

    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        await self.add_segments([segment])

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        rows: list[tuple[Row | None, Row | None]] = []
        for draft in segments:
            row = self.segment(draft.topic, draft.partition_id, draft.base_offset, draft.end_offset)
            old = self.state.partitions[draft.topic, draft.partition_id]
            new = Partition(old.topic, old.partition_id, draft.end_offset + 1, old.created_at, len(self.states))
            rows += [(None, row), (old, new)]
        self.commit(*rows)
        await self._read("add_segments", lambda _: None)

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = PAGE
    ) -> list[Segment]:
        return await self._read(
            "get_segments",
            lambda state: sorted(
                (row for row in _of(state, topic, partition_id) if row.end_offset >= from_offset),
                key=lambda row: row.base_offset,
            )[:limit],
        )

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        def read(state: State) -> tuple[bool, Segment | None]:
            found = (row for row in _of(state, topic, partition_id) if row.base_offset <= offset <= row.end_offset)
            return (topic, partition_id) in state.partitions, next(found, None)

        exists, row = await self._read("find_segment_for_offset", read)
        if not exists:
            raise NotFound(f"{topic}/{partition_id}")
        return row

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        gone = [row for row in _of(self.state, topic, partition_id) if row.end_offset < offset][:limit]
        self.commit(*((row, None) for row in gone))
        return await self._read("delete_segments_before", lambda _: len(gone))

    async def position(self) -> Position:
        return Position(len(self.states) - 1 if self.visible is None else self.visible)

    async def close(self) -> None:
        self.closed = True


def _of(state: State, topic: str, partition_id: int) -> list[Segment]:
    return [row for row in state.segments.values() if row.topic == topic and row.partition_id == partition_id]
