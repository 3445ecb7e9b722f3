"""`SegmentIndex`: which segment contains an offset, from memory.

It returns cached segments from memory and queries the store before it returns None. So eviction, a missed event or a
merge seen half-way may cost a query but never hide an existing offset. Events of ``segments`` (`apply`) and its own
misses fill it. It is as stale as the events are late: after a gap in the stream, call `clear`.

A miss inside or before the cached range fetches one page from that offset on. A miss beyond it is a single
``find_segment_for_offset``, unless the registry is known to have more there (the last page was full, or the last find
returned a segment): then it fetches a page, so that a reader that catches up doesn't query segment by segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from registry import validation
from registry.cache.partition_segments import NO_BLOCK, PartitionSegments
from registry.cache.single_flight import Fetch, SingleFlight
from registry.contract import Segments
from registry.errors import NotFound
from registry.models import Segment
from registry.position import Position

ANY_POSITION = Position(0)
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class IndexPolicy:
    """Limits of the index's memory: about 0.5 kB per segment (measured in docs/figures.md)."""

    max_segments: int = 500_000  # over all partitions; evicts the least recently read partition
    max_segments_per_partition: int = 100_000  # evicts the least recently read block
    max_partitions: int = 10_000
    page: int = 512  # segments fetched per miss
    removed_remembered: int = 8_192  # see SegmentIndex.apply


class SegmentIndex:
    """All but `find`, `find_in_store` and `close` is synchronous, hence atomic to other tasks."""

    def __init__(self, store: Segments, policy: IndexPolicy | None = None) -> None:
        self.policy = policy or IndexPolicy()
        self._store = store
        self._page = max(1, min(self.policy.page, self.policy.max_segments_per_partition))
        self._topics: dict[str, dict[int, PartitionSegments]] = {}
        self._recency: OrderedDict[tuple[str, int], PartitionSegments] = OrderedDict()
        self._fetches: SingleFlight[tuple[str, int, int], list[Segment]] = SingleFlight()
        self._removed: OrderedDict[int, Segment] = OrderedDict()
        self._size = 0
        self.reset_counts()

    def __len__(self) -> int:
        return self._size

    # ---- reading ------------------------------------------------------------------------------------------

    def lookup(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """Returns the cached segment that contains ``offset``; None means unknown.

        `PartitionSegments.search` inlined, after the cursor: a call costs as much as a bisect. For an offset before
        all blocks it searches the last one (-1), where nothing can match.
        """
        try:
            held = self._topics[topic][partition_id]
        except KeyError:
            self.misses += 1
            return None
        segment = held.current
        if offset >= segment.base_offset:
            if offset <= segment.end_offset:
                held.hits += 1
                return segment
            index = held.index + 1
            segments = held.block.segments
            if index < len(segments):
                segment = segments[index]
                if segment.base_offset <= offset <= segment.end_offset:
                    held.current = segment
                    held.index = index
                    held.hits += 1
                    return segment
        blocks = held.blocks
        if len(blocks) == 1:
            block = blocks[0]
        elif blocks:
            block = blocks[bisect_right(held.firsts, offset) - 1]  # if before the first: index is -1 below
            block.last_use = held.uses = held.uses + 1
        else:
            block = NO_BLOCK
        index = bisect_right(block.bases, offset) - 1
        if index >= 0:
            segment = block.segments[index]
            if offset <= segment.end_offset:
                held.current = segment
                held.block = block
                held.index = index
                held.hits += 1
                return segment
        self.misses += 1
        return None

    async def find(
        self, topic: str, partition_id: int, offset: int, *, as_of: Position = ANY_POSITION
    ) -> Segment | None:
        """Returns the segment that contains ``offset``, from memory or else from the store; callers share a query.

        None and NotFound come from the store. ``as_of``: do not join a fetch that began before this position.
        """
        segment = self.lookup(topic, partition_id, offset)
        if segment is None:
            segment = await self.find_in_store(topic, partition_id, offset, as_of=as_of)
        if segment is None:  # an event may have added it during the query
            blocks = self._topics.get(topic, {}).get(partition_id)
            segment = blocks.search(offset) if blocks is not None else None
        return segment

    async def find_in_store(
        self, topic: str, partition_id: int, offset: int, *, as_of: Position = ANY_POSITION
    ) -> Segment | None:
        """`find` without looking at memory first. Raises `Invalid` for arguments that no store accepts."""
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("offset", offset)
        for _ in range(_ATTEMPTS):
            fetch = self._fetches.join((topic, partition_id, offset), as_of)
            if fetch is None:
                fetch = self._start(topic, partition_id, offset, as_of)
            rows = await fetch.result()
            if fetch.current:
                return _containing(rows, offset)
        # Removals arrive faster than the store answers. Its result is right, but must not be cached.
        self.fetches += 1
        return await self._store.find_segment_for_offset(topic, partition_id, offset)

    def held(self, topic: str, partition_id: int) -> list[Segment]:
        """Returns the cached segments of a partition, in order."""
        blocks = self._topics.get(topic, {}).get(partition_id)
        return list(blocks) if blocks is not None else []

    # ---- changing -----------------------------------------------------------------------------------------

    def apply(self, before: Segment | None, data: Segment | None) -> None:
        """Applies a change event of ``segments``: the row before (UPDATE, DELETE) and after (INSERT, UPDATE).

        An INSERT never evicts a partition that is being read. Removed rows are remembered for a while: PostgreSQL
        sends a commit before other sessions see it, so a fetch right after the event can still return them.
        """
        if before is not None:
            self.remove(before)
        if data is not None:
            blocks = self._topics.get(data.topic, {}).get(data.partition_id)
            if blocks is not None or len(self._recency) < self.policy.max_partitions:
                self.add(data, recent=False)

    def add(self, segment: Segment, *, recent: bool = True) -> None:
        """Does nothing if a segment with a higher id contains some of its offsets: that one is newer."""
        blocks = self._blocks(segment.topic, segment.partition_id, recent=recent)
        size = blocks.size
        blocks.add(segment)
        self._enforce_limits(blocks, size)

    def remove(self, segment: Segment) -> None:
        """Also invalidates fetches of its partition, so that none brings it back."""
        self._removed[segment.id] = segment
        if len(self._removed) > self.policy.removed_remembered:
            self._removed.popitem(last=False)
        self._invalidate_fetches(segment.topic, segment.partition_id)
        blocks = self._topics.get(segment.topic, {}).get(segment.partition_id)
        if blocks is not None and blocks.remove(segment):
            self._size -= 1

    def forget(self, segments: Iterable[Segment]) -> None:
        """Drops segments that may be gone. Unlike after `remove`, a later fetch may bring them back."""
        for segment in segments:
            self._invalidate_fetches(segment.topic, segment.partition_id)
            blocks = self._topics.get(segment.topic, {}).get(segment.partition_id)
            if blocks is not None and blocks.remove(segment):
                self._size -= 1

    def remove_before(self, topic: str, partition_id: int, offset: int) -> None:
        """Drops the segments that end below ``offset``."""
        self._invalidate_fetches(topic, partition_id)
        blocks = self._topics.get(topic, {}).get(partition_id)
        if blocks is not None:
            size = blocks.size
            for segment in blocks.between(0, offset - 1):
                if segment.end_offset < offset:
                    blocks.remove(segment)
            self._size += blocks.size - size

    def drop_partition(self, topic: str, partition_id: int) -> None:
        self._invalidate_fetches(topic, partition_id)
        if (topic, partition_id) in self._recency:
            self._discard(topic, partition_id)

    def drop_topic(self, topic: str) -> None:
        self._fetches.invalidate_where(lambda key: key[0] == topic)
        for partition_id in list(self._topics.get(topic, ())):
            self._discard(topic, partition_id)

    def clear(self) -> None:
        """Drops everything: after a gap in the events no entry can be trusted."""
        self._fetches.invalidate_all()
        for topic, partition_id in list(self._recency):
            self._discard(topic, partition_id)

    async def close(self) -> None:
        await self._fetches.close()

    # ---- counting -----------------------------------------------------------------------------------------

    @property
    def hits(self) -> int:
        return self._past_hits + sum(blocks.hits for blocks in self._recency.values())

    @property
    def evictions(self) -> int:
        """Segments evicted because of a limit."""
        return self._past_evictions + sum(blocks.evictions for blocks in self._recency.values())

    def reset_counts(self) -> None:
        self.misses = self.fetches = self._past_hits = self._past_evictions = 0
        for blocks in self._recency.values():
            blocks.hits = blocks.hits_at_last_sweep = blocks.evictions = 0

    # ---- fetching -----------------------------------------------------------------------------------------

    def _start(self, topic: str, partition_id: int, offset: int, as_of: Position) -> Fetch[list[Segment]]:
        blocks = self._topics.get(topic, {}).get(partition_id)
        by_page = blocks is None or blocks.more or offset <= blocks.end
        suspect = blocks.search(offset) if blocks is not None else None
        more = False

        async def read() -> list[Segment]:
            nonlocal more
            self.fetches += 1
            if by_page:
                rows = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=self._page)
                more = len(rows) >= self._page
                if rows:
                    return rows
            # The end of the partition. Only this verb distinguishes a missing partition from an empty one.
            try:
                one = await self._store.find_segment_for_offset(topic, partition_id, offset)
            except NotFound:
                self.drop_partition(topic, partition_id)
                raise
            more = one is not None
            return [one] if one is not None else []

        def on_result(fetch: Fetch[list[Segment]], rows: list[Segment]) -> list[Segment]:
            if fetch.current and any(self._removed.get(row.id) == row for row in rows):
                fetch.current = False
            if fetch.current:
                if suspect is not None and _containing(rows, offset) is None:
                    self.remove(suspect)
                self._keep(topic, partition_id, offset, rows, more=more)
            return rows

        return self._fetches.start((topic, partition_id, offset), as_of, read, on_result)

    def _keep(self, topic: str, partition_id: int, offset: int, rows: list[Segment], *, more: bool) -> None:
        blocks = self._blocks(topic, partition_id, recent=True)
        size = blocks.size
        if not more:
            blocks.more = False
        elif rows[-1].end_offset >= blocks.end:
            blocks.more = True
        blocks.cover(offset, rows)
        self._enforce_limits(blocks, size)

    # ---- eviction -----------------------------------------------------------------------------------------

    def _blocks(self, topic: str, partition_id: int, *, recent: bool) -> PartitionSegments:
        partitions = self._topics.setdefault(topic, {})
        blocks = partitions.get(partition_id)
        if blocks is None:
            bound = min(self.policy.max_segments_per_partition, self.policy.max_segments)
            blocks = partitions[partition_id] = self._recency[topic, partition_id] = PartitionSegments(bound)
            if not recent:
                self._recency.move_to_end((topic, partition_id), last=False)
            if len(self._recency) > self.policy.max_partitions:
                self._evict_partition(blocks)
        return blocks

    def _enforce_limits(self, blocks: PartitionSegments, size_before: int) -> None:
        self._size += blocks.size - size_before
        while self._size > self.policy.max_segments and len(self._recency) > 1:
            self._evict_partition(blocks)

    def _evict_partition(self, kept: PartitionSegments) -> None:
        """Second chance: a partition that was read since the last sweep goes to the back of the queue instead.

        Exact LRU order would cost every lookup a move in a linked list; this costs lookups nothing.
        """
        while len(self._recency) > 1:
            key, blocks = next(iter(self._recency.items()))
            if blocks is not kept and blocks.hits == blocks.hits_at_last_sweep:
                self._past_evictions += blocks.size
                self._discard(*key)
                return
            blocks.hits_at_last_sweep = blocks.hits
            self._recency.move_to_end(key)

    def _discard(self, topic: str, partition_id: int) -> None:
        blocks = self._recency.pop((topic, partition_id))
        del self._topics[topic][partition_id]
        if not self._topics[topic]:
            del self._topics[topic]
        self._size -= blocks.size
        self._past_hits += blocks.hits
        self._past_evictions += blocks.evictions

    def _invalidate_fetches(self, topic: str, partition_id: int) -> None:
        if self._fetches:
            self._fetches.invalidate_where(lambda key: key[0] == topic and key[1] == partition_id)


def _containing(rows: list[Segment], offset: int) -> Segment | None:
    """A page starts with the segment that contains the offset, if there is one."""
    return rows[0] if rows and rows[0].base_offset <= offset <= rows[0].end_offset else None
