"""`CachedStore`: topics, partitions and segment metadata from memory, over any store.

An entry goes by a write through this store, by a change event of anyone's write, or by its age. Whoever
begins a read after one of these never gets an older value: a fill that was under way is not kept, and later
readers don't join it. Consumer offsets, agents, leases and the lake are never cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from registry.cache.entries import ALL_TOPICS, CacheContents, CachePolicy, Change
from registry.cache.lru import Counts
from registry.cache.segment_index import SegmentIndex
from registry.cache.single_flight import Flight, Flights
from registry.clock import Clock, SystemClock
from registry.contract import Load, MetadataStore
from registry.errors import NotFound
from registry.forwarding import ForwardingStore
from registry.inputs import Fence, ProducerDraft, SegmentDraft
from registry.json_text import JsonValue
from registry.models import Partition, Segment, Topic
from registry.position import Position

__all__ = ["CachePolicy", "CachedStore", "Change", "Counts"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_START = Position(0)
_NEVER = Position(2**63 - 1)
_WARMERS = 8


class CachedStore(ForwardingStore):
    """Closing it closes the store inside.

    ``at_least`` on a read: the answer contains every commit up to that position. It is one that
    ``position()`` answered, or that of an event this cache was given. Without it, an answer is as old as the
    events are late, and with no events as old as the TTL.
    """

    def __init__(self, inner: MetadataStore, policy: CachePolicy | None = None, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self.policy = policy or CachePolicy()
        self.index = SegmentIndex(inner, self.policy.index)
        self._contents = CacheContents(self.policy, clock or SystemClock(), self.index)

    # ---- cached reads: a hit waits for nothing ------------------------------------------------------------

    async def get_topic(self, name: str, *, at_least: Position | None = None) -> Topic | None:
        entry = self._contents.topics.get(name, at_least)
        if entry is not None:
            return entry.value
        contents = self._contents

        def land(flight: Flight[Topic | None], topic: Topic | None) -> Topic | None:
            return contents.keep_topic(name, topic, flight, ahead=self._ahead(at_least))

        return await self._fill(contents.topic_flights, name, at_least, lambda: self.inner.get_topic(name), land)

    async def list_topics(self, *, at_least: Position | None = None) -> list[Topic]:
        entry = self._contents.topic_list.get(ALL_TOPICS, at_least)
        return list(entry.value) if entry is not None else await self._fill_topic_list(at_least)

    async def get_partition(
        self, topic: str, partition_id: int, *, at_least: Position | None = None
    ) -> Partition | None:
        key = (topic, partition_id)
        entry = self._contents.partitions.get(key, at_least)
        if entry is not None:
            return entry.value
        contents = self._contents

        def land(flight: Flight[Partition | None], row: Partition | None) -> Partition | None:
            return contents.keep_partition(key, row, flight, ahead=self._ahead(at_least))

        return await self._fill(
            contents.partition_flights,
            key,
            at_least,
            lambda: self.inner.get_partition(topic, partition_id),
            land,
        )

    async def list_partitions(self, topic: str, *, at_least: Position | None = None) -> list[Partition]:
        """Made of the same entries as `get_partition`, so that the two can't disagree."""
        held = self._contents.partitions_of(topic, at_least)
        return held if held is not None else await self._fill_partitions(topic, at_least)

    async def find_segment_for_offset(
        self, topic: str, partition_id: int, offset: int, *, at_least: Position | None = None
    ) -> Segment | None:
        self._contents.check_segments()
        if at_least is None:
            return await self.index.find(topic, partition_id, offset)
        if at_least <= self._contents.progress.applied:
            return await self.index.find(topic, partition_id, offset, floor=at_least)
        return await self.index.ask(topic, partition_id, offset, floor=at_least)

    async def warm(self, topics: int | None = None) -> None:
        """Fill the cache with topics and their partitions: so many topics, or as many as it has room for."""
        rows = await self._fill_topic_list(None)
        room = self.policy.partitions
        chosen: list[str] = []
        for row in rows[: self.policy.topics if topics is None else topics]:
            room -= row.partition_count
            if room < 0:
                break
            chosen.append(row.name)
        names = iter(chosen)
        await asyncio.gather(*(self._warm(names) for _ in range(_WARMERS)))

    # ---- writes: forget before and after, whatever the outcome --------------------------------------------

    async def create_topic(
        self, name: str, partition_count: int, *,
        retention_ms: int | None = None, config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:  # fmt: skip
        with _around(lambda: self._contents.forget_whole_topic(name)):
            return await self.inner.create_topic(name, partition_count, retention_ms=retention_ms, config=config)

    async def delete_topic(self, name: str) -> None:
        with _around(lambda: self._contents.forget_whole_topic(name)):
            self._contents.deleted_topic(name, _NEVER)  # it may have happened, whatever comes of the call
            try:
                await self.inner.delete_topic(name)
            except NotFound:
                self._contents.deleted_topic(name, _START)
                raise
            self._contents.deleted_topic(name, await self.inner.position())

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        with _around(lambda: self._contents.forget_topic(name)):
            return await self.inner.update_topic_config(name, config, retention_ms=retention_ms)

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        with _around(lambda: self._contents.forget_partitions([(topic, partition_id)])):
            return await self.inner.update_high_watermark(topic, partition_id, high_watermark)

    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        with _around(lambda: self._contents.forget_partitions([(segment.topic, segment.partition_id)])):
            await self.inner.add_segment(segment, fence=fence)

    async def add_segments(
        self, segments: Sequence[SegmentDraft], *,
        fences: Sequence[Fence] = (), producers: Sequence[ProducerDraft] = (), intents_of: str | None = None,
    ) -> None:  # fmt: skip
        keys = list({(segment.topic, segment.partition_id) for segment in segments})
        with _around(lambda: self._contents.forget_partitions(keys)):
            await self.inner.add_segments(segments, fences=fences, producers=producers, intents_of=intents_of)

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        with _around(lambda: self.index.forget(old)):
            await self.inner.replace_segments(old, new, intents_of=intents_of)

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        with _around(lambda: self.index.remove_before(topic, partition_id, offset)):
            return await self.inner.delete_segments_before(topic, partition_id, offset, limit=limit)

    def load(self) -> AbstractAsyncContextManager[Load]:
        return self._loading()

    async def close(self) -> None:
        contents = self._contents
        contents.clear()
        await contents.topic_flights.close()
        await contents.topic_list_flights.close()
        await contents.partition_flights.close()
        await contents.shape_flights.close()
        await self.index.close()
        await self.inner.close()

    # ---- the change stream: in order, from one place ------------------------------------------------------

    @property
    def applied(self) -> Position:
        """Everything up to here has been applied."""
        return self._contents.progress.applied

    def resume(self, position: Position) -> None:
        """The stream begins, or begins again after a gap, just after this position: everything is forgotten.

        The first event or keepalive does it if nobody else has.
        """
        self._contents.resume(position)

    def invalidate(self, change: Change) -> None:
        """Take one change in. Call `advance` with its position once all of its transaction has been."""
        self._contents.apply(change)

    def invalidate_transaction(self, changes: Iterable[Change]) -> None:
        """All changes of one commit, or of several in order, with no reader in between."""
        position: Position | None = None
        for change in changes:
            self._contents.apply(change)
            position = change.position
        if position is not None:
            self._contents.advance(position)

    def advance(self, position: Position) -> None:
        """A keepalive, or the end of a transaction: all changes up to here have been taken in."""
        self._contents.advance(position)

    # ---- counting -----------------------------------------------------------------------------------------

    @property
    def topic_hit_rate(self) -> float:
        return self._contents.topics.hit_rate

    @property
    def partition_hit_rate(self) -> float:
        return self._contents.partitions.hit_rate

    @property
    def topic_list_hit_rate(self) -> float:
        return self._contents.topic_list.hit_rate

    @property
    def counts(self) -> dict[str, Counts]:
        """Since the start or the last reset. A reader that joins a fill counts as a miss."""
        contents, index = self._contents, self.index
        return {
            "topics": contents.topics.counts,
            "partitions": contents.partitions.counts,
            "topic_list": contents.topic_list.counts,
            "segments": Counts(index.hits, index.misses, index.evictions),
        }

    def reset_counts(self) -> None:
        self._contents.reset_counts()

    def clear(self) -> None:
        """Forget everything but how far the stream has been applied."""
        self._contents.clear()

    # ---- parts --------------------------------------------------------------------------------------------

    async def _fill_topic_list(self, at_least: Position | None) -> list[Topic]:
        contents = self._contents

        def land(flight: Flight[list[Topic]], rows: list[Topic]) -> list[Topic]:
            return contents.keep_topic_list(rows, flight, ahead=self._ahead(at_least))

        shared = await self._fill(contents.topic_list_flights, ALL_TOPICS, at_least, self.inner.list_topics, land)
        return list(shared)  # a list of the caller's own

    async def _fill_partitions(self, topic: str, at_least: Position | None) -> list[Partition]:
        contents = self._contents

        async def ask() -> list[Partition]:
            try:
                return await self.inner.list_partitions(topic)
            except NotFound:
                return []  # unless the events know better

        def land(flight: Flight[list[Partition]], rows: list[Partition]) -> list[Partition]:
            rows = contents.keep_partitions(topic, rows, flight, ahead=self._ahead(at_least))
            if not rows:  # every topic has a partition
                raise NotFound(f"topic {topic!r} does not exist; create it, or correct the name")
            return rows

        shared = await self._fill(contents.shape_flights, topic, at_least, ask, land)
        return list(shared)

    async def _fill(
        self, flights: Flights[K, T], key: K, at_least: Position | None,
        ask: Callable[[], Awaitable[T]], land: Callable[[Flight[T], T], T],
    ) -> T:  # fmt: skip
        floor = _START if at_least is None else at_least
        flight = flights.join(key, floor)
        if flight is None:
            flight = flights.start(key, max(floor, self.applied), ask, land)
        return await flight.answer()

    def _ahead(self, at_least: Position | None) -> bool:
        return at_least is not None and at_least > self.applied

    async def _warm(self, names: Iterator[str]) -> None:
        for name in names:
            with suppress(NotFound):  # deleted since it was listed
                await self._fill_partitions(name, None)

    @asynccontextmanager
    async def _loading(self) -> AsyncIterator[Load]:
        with _around(self.clear):
            async with self.inner.load() as load:
                yield load


@contextmanager
def _around(forget: Callable[[], None]) -> Iterator[None]:
    """Before: nobody reads what is about to change from memory. After: no fill that ran meanwhile is kept.

    Also when the verb fails or is cancelled, because then it may have happened all the same.
    """
    forget()
    try:
        yield
    finally:
        forget()
