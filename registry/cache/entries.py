"""The entries of a `CachedStore`, and everything that invalidates them.

All of it is synchronous: no reader sees half an invalidation. Dropping an entry also invalidates the fetches of it
that are in flight, so that none of them puts the old value back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from registry.cache.lru import AppliedPosition, Lru
from registry.cache.recent_changes import RecentChanges
from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.cache.single_flight import Fetch, SingleFlight
from registry.clock import Clock
from registry.models import Partition, Row, Segment, Topic
from registry.position import Position

PartitionKey: TypeAlias = tuple[str, int]
R = TypeVar("R", bound=Row)

ALL_TOPICS = ""
"""The one key of the topic list, and the scope of topics in `RecentChanges`. No topic has an empty name."""


@dataclass(frozen=True, slots=True)
class MetadataCachePolicy:
    """Sizes in entries, times in seconds. A time of 0 disables caching."""

    topics: int = 10_000
    topic_ttl: float = 300.0
    partitions: int = 100_000
    partition_ttl: float = 30.0
    topic_list_ttl: float = 30.0
    absent_ttl: float = 2.0  # for "does not exist"
    ttl_by_topic: Mapping[str, float] = field(default_factory=dict)  # overrides topic_ttl and partition_ttl
    segment_ttl: float = 30.0  # for segments, since the last event or keepalive of the change stream
    index: IndexPolicy = field(default_factory=IndexPolicy)
    changes_remembered: int = 4_096  # see registry.cache.recent_changes


class RowChange(Protocol):
    """The part of a change event that the cache needs (`astha.events.Event` provides it)."""

    @property
    def operation(self) -> str:
        """INSERT, UPDATE or DELETE."""
        ...

    @property
    def data(self) -> Row:
        """The new row; for a DELETE, the deleted row."""
        ...

    @property
    def before(self) -> Row | None: ...

    @property
    def position(self) -> Position: ...


class CacheEntries:
    def __init__(self, policy: MetadataCachePolicy, clock: Clock, index: SegmentIndex) -> None:
        self.policy = policy
        self.index = index
        self.progress = AppliedPosition()
        self.topics: Lru[str, Topic | None] = Lru(policy.topics, self.progress, clock)
        self.topic_list: Lru[str, tuple[Topic, ...]] = Lru(1, self.progress, clock)
        self.partitions: Lru[PartitionKey, Partition | None] = Lru(policy.partitions, self.progress, clock)
        self.partition_lists: Lru[str, tuple[PartitionKey, ...]] = Lru(policy.topics, self.progress, clock)
        self.topic_fetches: SingleFlight[str, Topic | None] = SingleFlight()
        self.topic_list_fetches: SingleFlight[str, list[Topic]] = SingleFlight()
        self.partition_fetches: SingleFlight[PartitionKey, Partition | None] = SingleFlight()
        self.partition_list_fetches: SingleFlight[str, list[Partition]] = SingleFlight()
        self._topic_changes: RecentChanges[str, Topic] = RecentChanges(policy.changes_remembered)
        self._partition_changes: RecentChanges[int, Partition] = RecentChanges(policy.changes_remembered)
        self._deleted: dict[str, Position] = {}  # topics deleted here: earlier events may arrive up to this position
        self._cached_ids: dict[str, set[int]] = {}  # partition ids in `partitions`, by topic
        self._clock = clock
        self._following = False
        self._segments_trusted_until = 0.0

    # ---- results of fetches -------------------------------------------------------------------------------

    def keep_topic(self, name: str, topic: Topic | None, fetch: Fetch[Topic | None], *, ahead: bool) -> Topic | None:
        """``ahead``: the caller asked for a position beyond all applied events, so none of them corrects the result."""
        if not ahead:
            topic = self._topic_changes.correct(ALL_TOPICS, name, topic, gone=self._deleted_here(name))
        if fetch.current:
            self.topics.put(name, topic, self._ttl(name, topic, self.policy.topic_ttl), fetch.as_of, fetch.sequence)
        return topic

    def keep_topic_list(self, rows: Sequence[Topic], fetch: Fetch[list[Topic]], *, ahead: bool) -> list[Topic]:
        """Also keeps the topics themselves, as far as there is room."""
        topics = list(rows)
        if not ahead:
            topics = self._topic_changes.correct_all(ALL_TOPICS, {row.name: row for row in rows}, self._deleted_here)
        if fetch.current:
            self.topic_list.put(ALL_TOPICS, tuple(topics), self.policy.topic_list_ttl, fetch.as_of, fetch.sequence)
            for topic in topics:
                if len(self.topics) < self.topics.capacity or topic.name in self.topics.entries:
                    ttl = self._ttl(topic.name, topic, self.policy.topic_ttl)
                    self.topics.put(topic.name, topic, ttl, fetch.as_of, fetch.sequence)
        return topics

    def keep_partition(
        self, key: PartitionKey, row: Partition | None, fetch: Fetch[Partition | None], *, ahead: bool
    ) -> Partition | None:
        if not ahead:
            row = self._partition_changes.correct(*key, row, gone=self._deleted_here(key[0]))
        if fetch.current:
            self._put_partition(key, row, fetch.as_of, fetch.sequence)
        return row

    def keep_partitions(
        self, topic: str, rows: Sequence[Partition], fetch: Fetch[list[Partition]], *, ahead: bool
    ) -> list[Partition]:
        """Keeps a list as the keys of its partitions, so that list and partitions can't disagree."""
        partitions = list(rows)
        if not ahead:
            gone = self._deleted_here(topic)
            partitions = self._partition_changes.correct_all(
                topic, {row.partition_id: row for row in rows}, lambda _: gone
            )
        if fetch.current and partitions:
            keys = tuple((topic, row.partition_id) for row in partitions)
            ttl = self._ttl(topic, partitions, self.policy.partition_ttl)
            self.partition_lists.put(topic, keys, ttl, fetch.as_of, fetch.sequence)
            for key, row in zip(keys, partitions, strict=True):
                self._put_partition(key, row, fetch.as_of, fetch.sequence)
        return partitions

    def partitions_of(self, topic: str, at_least: Position | None) -> list[Partition] | None:
        """Returns all partitions of the topic if all are cached, else None. Counts as one read of partitions."""
        listed = self.partition_lists.peek(topic, at_least)
        found: list[Partition] = []
        if listed is not None:
            for key in listed.value:
                entry = self.partitions.peek(key, at_least)
                if entry is None or entry.value is None:
                    break
                found.append(entry.value)
        if listed is None or len(found) < len(listed.value):
            self.partitions.misses += 1
            return None
        self.partitions.hits += 1
        return found

    # ---- invalidation by writes through this cache --------------------------------------------------------

    def invalidate_topic(self, name: str) -> None:
        """Drops its row and the list of topics."""
        self._topic_changes.forget(ALL_TOPICS, name)
        self.topics.drop(name)
        self.topic_fetches.invalidate(name)
        self._drop_topic_list()

    def invalidate_whole_topic(self, name: str) -> None:
        """Drops its row, partitions and segments, and the list of topics."""
        self.invalidate_topic(name)
        self._partition_changes.forget_scope(name)
        self._drop_partitions(name)
        self.index.drop_topic(name)

    def record_deletion(self, name: str, until: Position) -> None:
        """After a deletion by this cache: events up to ``until`` may still describe the deleted topic."""
        self._deleted = {other: end for other, end in self._deleted.items() if end > self.progress.applied}
        self._deleted[name] = until

    def invalidate_partitions(self, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            self._partition_changes.forget(*key)
            self._drop_partition(key)
            self.partition_fetches.invalidate(key)
            self.partition_list_fetches.invalidate(key[0])

    def clear(self) -> None:
        for lru in (self.topics, self.topic_list, self.partitions, self.partition_lists):
            lru.entries.clear()
        for fetches in (
            self.topic_fetches, self.topic_list_fetches, self.partition_fetches, self.partition_list_fetches,
        ):  # fmt: skip
            fetches.invalidate_all()
        self._cached_ids.clear()
        self.index.clear()

    def reset_counts(self) -> None:
        for lru in (self.topics, self.topic_list, self.partitions, self.partition_lists):
            lru.reset_counts()
        self.index.reset_counts()

    # ---- the change stream --------------------------------------------------------------------------------

    def resume(self, position: Position) -> None:
        """The stream starts again at ``position``. Changes may have been missed, so everything is dropped."""
        self.clear()
        self._topic_changes.clear()
        self._partition_changes.clear()
        self._deleted.clear()
        self._following = True
        self.progress.applied = position
        self._trust_segments()

    def advance(self, position: Position) -> None:
        """All changes up to the position have been applied."""
        if not self._following:
            self.resume(position)
        elif position > self.progress.applied:
            self.progress.applied = position
        self._trust_segments()

    def apply(self, change: RowChange) -> None:
        """Applies one change. Its transaction may have more, so the applied position stays just below it."""
        self.advance(Position(change.position - 1))
        row = change.data
        before, after = (row, None) if change.operation == "DELETE" else (change.before, row)
        if isinstance(row, Segment):
            self.index.apply(_as(Segment, before), _as(Segment, after))
        elif isinstance(row, Partition):
            self._apply_partition((row.topic, row.partition_id), change, _as(Partition, before), _as(Partition, after))
        elif isinstance(row, Topic):
            self._apply_topic(row.name, change, _as(Topic, before), _as(Topic, after))

    def _apply_topic(self, name: str, change: RowChange, before: Topic | None, after: Topic | None) -> None:
        self._topic_changes.record(ALL_TOPICS, name, before, after)
        self.topic_fetches.invalidate(name)
        self._drop_topic_list()
        entry = self.topics.entries.get(name)
        if entry is not None and entry.value != after:
            self.topics.drop(name)
            if entry.value == before and entry.as_of < change.position:
                ttl = self._ttl(name, after, self.policy.topic_ttl)
                self.topics.put(name, after, ttl, entry.as_of, entry.sequence)
        if after is None:
            self._drop_partitions(name)
            self.index.drop_topic(name)

    def _apply_partition(
        self, key: PartitionKey, change: RowChange, before: Partition | None, after: Partition | None
    ) -> None:
        """Replaces a cached row that equals the event's row before, so that a busy partition stays cached."""
        self._partition_changes.record(*key, before, after)
        self.partition_fetches.invalidate(key)
        self.partition_list_fetches.invalidate(key[0])
        entry = self.partitions.entries.get(key)
        if entry is not None and entry.value != after:
            self._drop_partition(key)
            if entry.value == before and entry.as_of < change.position:
                self._put_partition(key, after, entry.as_of, entry.sequence)
        if before is None or after is None:
            self.partition_lists.drop(key[0])
        if after is None:
            self.index.drop_partition(*key)

    # ---- segments without a stream ------------------------------------------------------------------------

    def expire_segments(self) -> None:
        """Clears the index, which has no TTL of its own, if the stream has been silent for ``segment_ttl``."""
        if self._clock.monotonic() >= self._segments_trusted_until:
            self.index.clear()
            self._trust_segments()

    def _trust_segments(self) -> None:
        self._segments_trusted_until = self._clock.monotonic() + self.policy.segment_ttl

    # ---- internals ----------------------------------------------------------------------------------------

    def _deleted_here(self, topic: str) -> bool:
        until = self._deleted.get(topic)
        if until is not None and until <= self.progress.applied:
            del self._deleted[topic]
            return False
        return until is not None

    def _ttl(self, topic: str, value: object, usual: float) -> float:
        if value is None:
            return self.policy.absent_ttl
        return self.policy.ttl_by_topic.get(topic, usual)

    def _put_partition(self, key: PartitionKey, row: Partition | None, as_of: Position, sequence: int) -> None:
        gone = self.partitions.put(key, row, self._ttl(key[0], row, self.policy.partition_ttl), as_of, sequence)
        if key in self.partitions.entries:
            self._cached_ids.setdefault(key[0], set()).add(key[1])
        if gone is not None:
            self._forget_id(gone)

    def _drop_partition(self, key: PartitionKey) -> None:
        if key in self.partitions.entries:
            self.partitions.drop(key)
            self._forget_id(key)

    def _drop_partitions(self, topic: str) -> None:
        for number in self._cached_ids.pop(topic, ()):
            self.partitions.drop((topic, number))
        self.partition_fetches.invalidate_where(lambda key: key[0] == topic)
        self.partition_lists.drop(topic)
        self.partition_list_fetches.invalidate(topic)

    def _forget_id(self, key: PartitionKey) -> None:
        numbers = self._cached_ids[key[0]]
        numbers.discard(key[1])
        if not numbers:
            del self._cached_ids[key[0]]

    def _drop_topic_list(self) -> None:
        self.topic_list.drop(ALL_TOPICS)
        self.topic_list_fetches.invalidate(ALL_TOPICS)


def _as(kind: type[R], row: Row | None) -> R | None:
    return row if isinstance(row, kind) else None
