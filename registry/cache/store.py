"""`CachedStore`: topics, partitions and segment metadata from memory, over any store.

A write through this store, a change event of any writer, or the TTL invalidates an entry. A read that begins after
that never returns an older value: a fetch that was in flight is not cached, and later readers don't join it. Consumer
offsets, agents, leases and the lake are never cached.
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

from registry.cache.entries import ALL_TOPICS, CacheEntries, MetadataCachePolicy, RowChange
from registry.cache.lru import CacheCounters
from registry.cache.segment_index import SegmentIndex
from registry.cache.single_flight import Fetch, SingleFlight
from registry.clock import Clock, SystemClock
from registry.contract import BulkLoad, MetadataStore
from registry.errors import NotFound
from registry.forwarding import ForwardingStore
from registry.inputs import Fence, ProducerDraft, SegmentDraft
from registry.json_text import JsonValue
from registry.models import Partition, Segment, Topic
from registry.position import Position

__all__ = ["MetadataCachePolicy", "CachedStore", "RowChange", "CacheCounters"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_START = Position(0)
_NEVER = Position(2**63 - 1)
_WARMERS = 8


class CachedStore(ForwardingStore):
    """Closing it closes the inner store.

    ``at_least`` on a read: the result contains every commit up to that position, which is one that ``position()``
    returned or that of an event this cache was given. Without it, a result is as old as the events are late, and
    without events as old as the TTL.
    """

    def __init__(
        self, inner: MetadataStore, policy: MetadataCachePolicy | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(inner)
        self.policy = policy or MetadataCachePolicy()
        self.index = SegmentIndex(inner, self.policy.index)
        self._entries = CacheEntries(self.policy, clock or SystemClock(), self.index)

    # ---- cached reads: a hit never awaits -----------------------------------------------------------------

    async def get_topic(self, name: str, *, at_least: Position | None = None) -> Topic | None:
        entry = self._entries.topics.get(name, at_least)
        if entry is not None:
            return entry.value
        entries = self._entries

        def on_result(fetch: Fetch[Topic | None], topic: Topic | None) -> Topic | None:
            return entries.keep_topic(name, topic, fetch, ahead=self._ahead(at_least))

        return await self._fill(entries.topic_fetches, name, at_least, lambda: self.inner.get_topic(name), on_result)

    async def list_topics(self, *, at_least: Position | None = None) -> list[Topic]:
        entry = self._entries.topic_list.get(ALL_TOPICS, at_least)
        return list(entry.value) if entry is not None else await self._fill_topic_list(at_least)

    async def get_partition(
        self, topic: str, partition_id: int, *, at_least: Position | None = None
    ) -> Partition | None:
        key = (topic, partition_id)
        entry = self._entries.partitions.get(key, at_least)
        if entry is not None:
            return entry.value
        entries = self._entries

        def on_result(fetch: Fetch[Partition | None], row: Partition | None) -> Partition | None:
            return entries.keep_partition(key, row, fetch, ahead=self._ahead(at_least))

        return await self._fill(
            entries.partition_fetches,
            key,
            at_least,
            lambda: self.inner.get_partition(topic, partition_id),
            on_result,
        )

    async def list_partitions(self, topic: str, *, at_least: Position | None = None) -> list[Partition]:
        """Uses the same entries as `get_partition`, so that the two can't disagree."""
        held = self._entries.partitions_of(topic, at_least)
        return held if held is not None else await self._fill_partitions(topic, at_least)

    async def find_segment_for_offset(
        self, topic: str, partition_id: int, offset: int, *, at_least: Position | None = None
    ) -> Segment | None:
        self._entries.expire_segments()
        if at_least is None:
            return await self.index.find(topic, partition_id, offset)
        if at_least <= self._entries.progress.applied:
            return await self.index.find(topic, partition_id, offset, as_of=at_least)
        return await self.index.find_in_store(topic, partition_id, offset, as_of=at_least)

    async def warm(self, topics: int | None = None) -> None:
        """Caches topics and their partitions: the first ``topics`` of them, or as many as there is room for."""
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

    # ---- writes: invalidate before and after, whatever the outcome ----------------------------------------

    async def create_topic(
        self, name: str, partition_count: int, *,
        retention_ms: int | None = None, config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:  # fmt: skip
        with _invalidating(lambda: self._entries.invalidate_whole_topic(name)):
            return await self.inner.create_topic(name, partition_count, retention_ms=retention_ms, config=config)

    async def delete_topic(self, name: str) -> None:
        with _invalidating(lambda: self._entries.invalidate_whole_topic(name)):
            self._entries.record_deletion(name, _NEVER)  # it may be deleted even if the call fails
            try:
                await self.inner.delete_topic(name)
            except NotFound:
                self._entries.record_deletion(name, _START)
                raise
            self._entries.record_deletion(name, await self.inner.position())

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        with _invalidating(lambda: self._entries.invalidate_topic(name)):
            return await self.inner.update_topic_config(name, config, retention_ms=retention_ms)

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        with _invalidating(lambda: self._entries.invalidate_partitions([(topic, partition_id)])):
            return await self.inner.update_high_watermark(topic, partition_id, high_watermark)

    async def add_segment(self, segment: SegmentDraft, *, fence: Fence | None = None) -> None:
        with _invalidating(lambda: self._entries.invalidate_partitions([(segment.topic, segment.partition_id)])):
            await self.inner.add_segment(segment, fence=fence)

    async def add_segments(
        self, segments: Sequence[SegmentDraft], *,
        fences: Sequence[Fence] = (), producers: Sequence[ProducerDraft] = (), intents_of: str | None = None,
    ) -> None:  # fmt: skip
        keys = list({(segment.topic, segment.partition_id) for segment in segments})
        with _invalidating(lambda: self._entries.invalidate_partitions(keys)):
            await self.inner.add_segments(segments, fences=fences, producers=producers, intents_of=intents_of)

    async def replace_segments(
        self, old: Sequence[Segment], new: Sequence[SegmentDraft], *, intents_of: str | None = None
    ) -> None:
        with _invalidating(lambda: self.index.forget(old)):
            await self.inner.replace_segments(old, new, intents_of=intents_of)

    async def delete_segments_before(
        self, topic: str, partition_id: int, offset: int, *, limit: int | None = None
    ) -> int:
        with _invalidating(lambda: self.index.remove_before(topic, partition_id, offset)):
            return await self.inner.delete_segments_before(topic, partition_id, offset, limit=limit)

    def load(self) -> AbstractAsyncContextManager[BulkLoad]:
        return self._loading()

    async def close(self) -> None:
        entries = self._entries
        entries.clear()
        await entries.topic_fetches.close()
        await entries.topic_list_fetches.close()
        await entries.partition_fetches.close()
        await entries.partition_list_fetches.close()
        await self.index.close()
        await self.inner.close()

    # ---- the change stream: call in order, from one task --------------------------------------------------

    @property
    def applied(self) -> Position:
        """The position up to which all changes have been applied."""
        return self._entries.progress.applied

    def resume(self, position: Position) -> None:
        """The stream starts, or restarts after a gap, just after this position. Drops everything.

        The first event or keepalive does the same if this was never called.
        """
        self._entries.resume(position)

    def invalidate(self, change: RowChange) -> None:
        """Applies one change. Call `advance` with its position after the last change of its transaction."""
        self._entries.apply(change)

    def invalidate_transaction(self, changes: Iterable[RowChange]) -> None:
        """Applies all changes of one commit, or of several in order, with no read in between."""
        position: Position | None = None
        for change in changes:
            self._entries.apply(change)
            position = change.position
        if position is not None:
            self._entries.advance(position)

    def advance(self, position: Position) -> None:
        """A keepalive or the end of a transaction: all changes up to ``position`` have been applied."""
        self._entries.advance(position)

    # ---- counting -----------------------------------------------------------------------------------------

    @property
    def topic_hit_rate(self) -> float:
        return self._entries.topics.hit_rate

    @property
    def partition_hit_rate(self) -> float:
        return self._entries.partitions.hit_rate

    @property
    def topic_list_hit_rate(self) -> float:
        return self._entries.topic_list.hit_rate

    @property
    def counts(self) -> dict[str, CacheCounters]:
        """Counts since the start or the last reset. A reader that joins a fetch counts as a miss."""
        entries, index = self._entries, self.index
        return {
            "topics": entries.topics.counts,
            "partitions": entries.partitions.counts,
            "topic_list": entries.topic_list.counts,
            "segments": CacheCounters(index.hits, index.misses, index.evictions),
        }

    def reset_counts(self) -> None:
        self._entries.reset_counts()

    def clear(self) -> None:
        """Drops everything but the applied position."""
        self._entries.clear()

    # ---- internals ----------------------------------------------------------------------------------------

    async def _fill_topic_list(self, at_least: Position | None) -> list[Topic]:
        entries = self._entries

        def on_result(fetch: Fetch[list[Topic]], rows: list[Topic]) -> list[Topic]:
            return entries.keep_topic_list(rows, fetch, ahead=self._ahead(at_least))

        shared = await self._fill(entries.topic_list_fetches, ALL_TOPICS, at_least, self.inner.list_topics, on_result)
        return list(shared)  # callers share the fetched list

    async def _fill_partitions(self, topic: str, at_least: Position | None) -> list[Partition]:
        entries = self._entries

        async def read() -> list[Partition]:
            try:
                return await self.inner.list_partitions(topic)
            except NotFound:
                return []  # on_result raises NotFound, unless recent events say otherwise

        def on_result(fetch: Fetch[list[Partition]], rows: list[Partition]) -> list[Partition]:
            rows = entries.keep_partitions(topic, rows, fetch, ahead=self._ahead(at_least))
            if not rows:  # every topic has a partition
                raise NotFound(f"topic {topic!r} does not exist; create it, or correct the name")
            return rows

        shared = await self._fill(entries.partition_list_fetches, topic, at_least, read, on_result)
        return list(shared)

    async def _fill(
        self, fetches: SingleFlight[K, T], key: K, at_least: Position | None,
        read: Callable[[], Awaitable[T]], on_result: Callable[[Fetch[T], T], T],
    ) -> T:  # fmt: skip
        as_of = _START if at_least is None else at_least
        fetch = fetches.join(key, as_of)
        if fetch is None:
            fetch = fetches.start(key, max(as_of, self.applied), read, on_result)
        return await fetch.result()

    def _ahead(self, at_least: Position | None) -> bool:
        return at_least is not None and at_least > self.applied

    async def _warm(self, names: Iterator[str]) -> None:
        for name in names:
            with suppress(NotFound):  # deleted since it was listed
                await self._fill_partitions(name, None)

    @asynccontextmanager
    async def _loading(self) -> AsyncIterator[BulkLoad]:
        with _invalidating(self.clear):
            async with self.inner.load() as load:
                yield load


@contextmanager
def _invalidating(invalidate: Callable[[], None]) -> Iterator[None]:
    """Before: no reader gets from memory what is about to change. After: no fetch that ran meanwhile is cached.

    Also when the verb fails or is cancelled, because it may have been committed all the same.
    """
    invalidate()
    try:
        yield
    finally:
        invalidate()
