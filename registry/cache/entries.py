"""What a `CachedStore` holds, and everything that makes it forget.

All of it is synchronous: no reader sees half an invalidation. Dropping an entry also spoils the fills of it
that are under way, so that none of them puts the old value back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from registry.cache.lru import Lru, Progress
from registry.cache.recent_changes import Amendments
from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.cache.single_flight import Flight, Flights
from registry.clock import Clock
from registry.models import Partition, Row, Segment, Topic
from registry.position import Position

PartitionKey: TypeAlias = tuple[str, int]
R = TypeVar("R", bound=Row)

ALL_TOPICS = ""
"""The one key of the topic list, and the scope of topics among the amendments. No topic has an empty name."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Sizes in entries, times in seconds. A time of zero means: don't cache."""

    topics: int = 10_000
    topic_ttl: float = 300.0
    partitions: int = 100_000
    partition_ttl: float = 30.0
    topic_list_ttl: float = 30.0
    absent_ttl: float = 2.0  # how long "there is none" is believed
    ttl_by_topic: Mapping[str, float] = field(default_factory=dict)  # for the topic's row and its partitions
    segment_ttl: float = 30.0  # how long segments are believed with no word from the change stream
    index: IndexPolicy = field(default_factory=IndexPolicy)
    changes_remembered: int = 4_096  # see registry.cache.recent_changes


class Change(Protocol):
    """What the cache wants to know of a change event (`astha.events.Event` is one)."""

    @property
    def operation(self) -> str:
        """INSERT, UPDATE or DELETE."""
        ...

    @property
    def data(self) -> Row:
        """The row as it is now; of a DELETE, the row that is gone."""
        ...

    @property
    def before(self) -> Row | None: ...

    @property
    def position(self) -> Position: ...


class CacheContents:
    def __init__(self, policy: CachePolicy, clock: Clock, index: SegmentIndex) -> None:
        self.policy = policy
        self.index = index
        self.progress = Progress()
        self.topics: Lru[str, Topic | None] = Lru(policy.topics, self.progress, clock)
        self.topic_list: Lru[str, tuple[Topic, ...]] = Lru(1, self.progress, clock)
        self.partitions: Lru[PartitionKey, Partition | None] = Lru(policy.partitions, self.progress, clock)
        self.shapes: Lru[str, tuple[PartitionKey, ...]] = Lru(policy.topics, self.progress, clock)
        self.topic_flights: Flights[str, Topic | None] = Flights()
        self.topic_list_flights: Flights[str, list[Topic]] = Flights()
        self.partition_flights: Flights[PartitionKey, Partition | None] = Flights()
        self.shape_flights: Flights[str, list[Partition]] = Flights()
        self._topic_changes: Amendments[str, Topic] = Amendments(policy.changes_remembered)
        self._partition_changes: Amendments[int, Partition] = Amendments(policy.changes_remembered)
        self._deleted: dict[str, Position] = {}  # topics that we deleted: events from before that come until there
        self._numbers: dict[str, set[int]] = {}  # which partitions of a topic are held
        self._clock = clock
        self._fed = False
        self._segments_believed_until = 0.0

    # ---- what a fill brings -------------------------------------------------------------------------------

    def keep_topic(self, name: str, topic: Topic | None, flight: Flight[Topic | None], *, ahead: bool) -> Topic | None:
        """``ahead``: the read was asked to be newer than all events so far, so none of them corrects it."""
        if not ahead:
            topic = self._topic_changes.row(ALL_TOPICS, name, topic, gone=self._gone(name))
        if flight.current:
            self.topics.put(name, topic, self._ttl(name, topic, self.policy.topic_ttl), flight.floor, flight.tick)
        return topic

    def keep_topic_list(self, rows: Sequence[Topic], flight: Flight[list[Topic]], *, ahead: bool) -> list[Topic]:
        """The topics themselves are kept too, as far as there is room."""
        topics = list(rows)
        if not ahead:
            topics = self._topic_changes.rows(ALL_TOPICS, {row.name: row for row in rows}, self._gone)
        if flight.current:
            self.topic_list.put(ALL_TOPICS, tuple(topics), self.policy.topic_list_ttl, flight.floor, flight.tick)
            for topic in topics:
                if len(self.topics) < self.topics.capacity or topic.name in self.topics.entries:
                    ttl = self._ttl(topic.name, topic, self.policy.topic_ttl)
                    self.topics.put(topic.name, topic, ttl, flight.floor, flight.tick)
        return topics

    def keep_partition(
        self, key: PartitionKey, row: Partition | None, flight: Flight[Partition | None], *, ahead: bool
    ) -> Partition | None:
        if not ahead:
            row = self._partition_changes.row(*key, row, gone=self._gone(key[0]))
        if flight.current:
            self._put_partition(key, row, flight.floor, flight.tick)
        return row

    def keep_partitions(
        self, topic: str, rows: Sequence[Partition], flight: Flight[list[Partition]], *, ahead: bool
    ) -> list[Partition]:
        """A list is kept as the keys of its partitions, so that it can't disagree with them."""
        partitions = list(rows)
        if not ahead:
            gone = self._gone(topic)
            partitions = self._partition_changes.rows(topic, {row.partition_id: row for row in rows}, lambda _: gone)
        if flight.current and partitions:
            keys = tuple((topic, row.partition_id) for row in partitions)
            ttl = self._ttl(topic, partitions, self.policy.partition_ttl)
            self.shapes.put(topic, keys, ttl, flight.floor, flight.tick)
            for key, row in zip(keys, partitions, strict=True):
                self._put_partition(key, row, flight.floor, flight.tick)
        return partitions

    def partitions_of(self, topic: str, at_least: Position | None) -> list[Partition] | None:
        """All of them, if all are held; counted as one read of partitions."""
        shape = self.shapes.peek(topic, at_least)
        found: list[Partition] = []
        if shape is not None:
            for key in shape.value:
                entry = self.partitions.peek(key, at_least)
                if entry is None or entry.value is None:
                    break
                found.append(entry.value)
        if shape is None or len(found) < len(shape.value):
            self.partitions.misses += 1
            return None
        self.partitions.hits += 1
        return found

    # ---- what a write of our own makes it forget ----------------------------------------------------------

    def forget_topic(self, name: str) -> None:
        """Its row and the list of topics."""
        self._topic_changes.forget(ALL_TOPICS, name)
        self.topics.drop(name)
        self.topic_flights.spoil(name)
        self._drop_topic_list()

    def forget_whole_topic(self, name: str) -> None:
        """With its partitions and segments."""
        self.forget_topic(name)
        self._partition_changes.forget_scope(name)
        self._drop_partitions(name)
        self.index.drop_topic(name)

    def deleted_topic(self, name: str, until: Position) -> None:
        """By us. Events up to there may still speak of a topic of that name that was there before."""
        self._deleted = {other: end for other, end in self._deleted.items() if end > self.progress.applied}
        self._deleted[name] = until

    def forget_partitions(self, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            self._partition_changes.forget(*key)
            self._drop_partition(key)
            self.partition_flights.spoil(key)
            self.shape_flights.spoil(key[0])

    def clear(self) -> None:
        for lru in (self.topics, self.topic_list, self.partitions, self.shapes):
            lru.entries.clear()
        for flights in (
            self.topic_flights, self.topic_list_flights, self.partition_flights, self.shape_flights,
        ):  # fmt: skip
            flights.spoil_all()
        self._numbers.clear()
        self.index.clear()

    def reset_counts(self) -> None:
        for lru in (self.topics, self.topic_list, self.partitions, self.shapes):
            lru.reset_counts()
        self.index.reset_counts()

    # ---- what the change stream says ----------------------------------------------------------------------

    def resume(self, position: Position) -> None:
        """The stream starts here, anew: what was missed is unknown, so all is forgotten."""
        self.clear()
        self._topic_changes.clear()
        self._partition_changes.clear()
        self._deleted.clear()
        self._fed = True
        self.progress.applied = position
        self._believe_segments()

    def advance(self, position: Position) -> None:
        """All changes up to the position have been applied."""
        if not self._fed:
            self.resume(position)
        elif position > self.progress.applied:
            self.progress.applied = position
        self._believe_segments()

    def apply(self, change: Change) -> None:
        """One change. Its transaction may have more: only what is before it is known to be applied."""
        self.advance(Position(change.position - 1))
        row = change.data
        before, after = (row, None) if change.operation == "DELETE" else (change.before, row)
        if isinstance(row, Segment):
            self.index.apply(_as(Segment, before), _as(Segment, after))
        elif isinstance(row, Partition):
            self._apply_partition((row.topic, row.partition_id), change, _as(Partition, before), _as(Partition, after))
        elif isinstance(row, Topic):
            self._apply_topic(row.name, change, _as(Topic, before), _as(Topic, after))

    def _apply_topic(self, name: str, change: Change, before: Topic | None, after: Topic | None) -> None:
        self._topic_changes.note(ALL_TOPICS, name, before, after)
        self.topic_flights.spoil(name)
        self._drop_topic_list()
        entry = self.topics.entries.get(name)
        if entry is not None and entry.value != after:
            self.topics.drop(name)
            if entry.value == before and entry.floor < change.position:
                ttl = self._ttl(name, after, self.policy.topic_ttl)
                self.topics.put(name, after, ttl, entry.floor, entry.tick)
        if after is None:
            self._drop_partitions(name)
            self.index.drop_topic(name)

    def _apply_partition(
        self, key: PartitionKey, change: Change, before: Partition | None, after: Partition | None
    ) -> None:
        """If we hold just what the event replaces, we hold what it brings: a busy partition stays cached."""
        self._partition_changes.note(*key, before, after)
        self.partition_flights.spoil(key)
        self.shape_flights.spoil(key[0])
        entry = self.partitions.entries.get(key)
        if entry is not None and entry.value != after:
            self._drop_partition(key)
            if entry.value == before and entry.floor < change.position:
                self._put_partition(key, after, entry.floor, entry.tick)
        if before is None or after is None:
            self.shapes.drop(key[0])
        if after is None:
            self.index.drop_partition(*key)

    # ---- segments without a stream ------------------------------------------------------------------------

    def check_segments(self) -> None:
        """The index has no TTL of its own: with no word from the stream for a while, it starts afresh."""
        if self._clock.monotonic() >= self._segments_believed_until:
            self.index.clear()
            self._believe_segments()

    def _believe_segments(self) -> None:
        self._segments_believed_until = self._clock.monotonic() + self.policy.segment_ttl

    # ---- parts --------------------------------------------------------------------------------------------

    def _gone(self, topic: str) -> bool:
        until = self._deleted.get(topic)
        if until is not None and until <= self.progress.applied:
            del self._deleted[topic]
            return False
        return until is not None

    def _ttl(self, topic: str, value: object, usual: float) -> float:
        if value is None:
            return self.policy.absent_ttl
        return self.policy.ttl_by_topic.get(topic, usual)

    def _put_partition(self, key: PartitionKey, row: Partition | None, floor: Position, tick: int) -> None:
        gone = self.partitions.put(key, row, self._ttl(key[0], row, self.policy.partition_ttl), floor, tick)
        if key in self.partitions.entries:
            self._numbers.setdefault(key[0], set()).add(key[1])
        if gone is not None:
            self._unnumber(gone)

    def _drop_partition(self, key: PartitionKey) -> None:
        if key in self.partitions.entries:
            self.partitions.drop(key)
            self._unnumber(key)

    def _drop_partitions(self, topic: str) -> None:
        for number in self._numbers.pop(topic, ()):
            self.partitions.drop((topic, number))
        self.partition_flights.spoil_where(lambda key: key[0] == topic)
        self.shapes.drop(topic)
        self.shape_flights.spoil(topic)

    def _unnumber(self, key: PartitionKey) -> None:
        numbers = self._numbers[key[0]]
        numbers.discard(key[1])
        if not numbers:
            del self._numbers[key[0]]

    def _drop_topic_list(self) -> None:
        self.topic_list.drop(ALL_TOPICS)
        self.topic_list_flights.spoil(ALL_TOPICS)


def _as(kind: type[R], row: Row | None) -> R | None:
    return row if isinstance(row, kind) else None
