"""`SegmentIndex`: which segment holds an offset, from memory.

It answers positively from memory and asks the store before it answers negatively. So eviction, an event that
was missed or a merge seen half-way may cost a query but never make an existing offset unfindable. It is fed
by events of ``segments`` (`apply`) and by its own misses. It is as stale as the events are late: whoever
loses the stream must `clear` it.

A miss inside or before what is held fetches one page from that offset on. A miss beyond it is a single
``find_segment_for_offset``, unless the registry is known to hold more there (the last page was full, or the
last find found something): then it is a page again, so that a reader who catches up doesn't ask one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from registry import validation
from registry.cache.partition_segments import NO_BLOCK, SegmentBlocks
from registry.cache.single_flight import Flight, Flights
from registry.contract import Segments
from registry.errors import NotFound
from registry.models import Segment
from registry.position import Position

NO_FLOOR = Position(0)
_REASKS = 3


@dataclass(frozen=True, slots=True)
class IndexPolicy:
    """How much memory an index may use: about 0.5 kB a segment (docs/registry.md has the measurement)."""

    max_segments: int = 500_000  # over all partitions; the least recently read partition goes first
    max_segments_per_partition: int = 100_000  # the least recently read block goes first
    max_partitions: int = 10_000
    page: int = 512  # segments fetched by one miss
    removed_remembered: int = 8_192  # see SegmentIndex.apply


class SegmentIndex:
    """All but `find`, `range`, `ask` and `close` is synchronous, hence atomic as seen by the event loop."""

    def __init__(self, store: Segments, policy: IndexPolicy | None = None) -> None:
        self.policy = policy or IndexPolicy()
        self._store = store
        self._page = max(1, min(self.policy.page, self.policy.max_segments_per_partition))
        self._topics: dict[str, dict[int, SegmentBlocks]] = {}
        self._recency: OrderedDict[tuple[str, int], SegmentBlocks] = OrderedDict()
        self._flights: Flights[tuple[str, int, int], list[Segment]] = Flights()
        self._removed: OrderedDict[int, Segment] = OrderedDict()
        self._size = 0
        self.reset_counts()

    def __len__(self) -> int:
        return self._size

    # ---- asking -------------------------------------------------------------------------------------------

    def lookup(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        """From memory only: None means unknown.

        `SegmentBlocks.search` written out, with the cursor in front: a call costs as much as a bisect. For an
        offset before all blocks the last one (-1) is searched, where nothing can match.
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
            block = blocks[bisect_right(held.firsts, offset) - 1]  # before the first: index is -1 below
            block.used = held.tick = held.tick + 1
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

    async def find(self, topic: str, partition_id: int, offset: int, *, floor: Position = NO_FLOOR) -> Segment | None:
        """The segment that holds the offset: from memory or else from the store, once for concurrent callers.

        None and NotFound are the store's answers. ``floor`` keeps a caller off a fetch that began too early.
        """
        segment = self.lookup(topic, partition_id, offset)
        if segment is None:
            segment = await self.ask(topic, partition_id, offset, floor=floor)
        if segment is None:  # an event may have brought it while the store was being asked
            blocks = self._topics.get(topic, {}).get(partition_id)
            segment = blocks.search(offset) if blocks is not None else None
        return segment

    async def ask(self, topic: str, partition_id: int, offset: int, *, floor: Position = NO_FLOOR) -> Segment | None:
        """`find` that doesn't trust its memory. Invalid for arguments that no store takes."""
        validation.name("topic", topic)
        validation.whole32("partition_id", partition_id)
        validation.whole("offset", offset)
        for _ in range(_REASKS):
            flight = self._flights.join((topic, partition_id, offset), floor)
            if flight is None:
                flight = self._start(topic, partition_id, offset, floor)
            rows = await flight.answer()
            if flight.current:
                return _holding(rows, offset)
        # Removals keep arriving faster than the store answers. Its word is right, if not worth keeping.
        self.fetches += 1
        return await self._store.find_segment_for_offset(topic, partition_id, offset)

    async def range(self, topic: str, partition_id: int, first: int, last: int) -> list[Segment]:
        """All segments that hold any of ``first..last``, in order; gaps in memory are asked of the store."""
        found: list[Segment] = []
        offset = first
        while offset <= last:
            held = self.lookup(topic, partition_id, offset)
            if held is not None:
                rows, ended = [held], False
            else:
                self.fetches += 1
                rows = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=self._page)
                ended = len(rows) < self._page
            found += (row for row in rows if row.base_offset <= last)
            if ended:
                break
            offset = rows[-1].end_offset + 1
        return found

    def held(self, topic: str, partition_id: int) -> list[Segment]:
        """What is in memory of a partition, in order."""
        blocks = self._topics.get(topic, {}).get(partition_id)
        return list(blocks) if blocks is not None else []

    # ---- feeding ------------------------------------------------------------------------------------------

    def apply(self, before: Segment | None, data: Segment | None) -> None:
        """A change event of ``segments``: the row before (UPDATE, DELETE) and after (INSERT, UPDATE).

        An INSERT never pushes out a partition that is being read. Rows that are gone are remembered for a
        while: PostgreSQL sends a commit before other sessions see it, so a fetch right after the event can
        still return them.
        """
        if before is not None:
            self.remove(before)
        if data is not None:
            blocks = self._topics.get(data.topic, {}).get(data.partition_id)
            if blocks is not None or len(self._recency) < self.policy.max_partitions:
                self.add(data, recent=False)

    def add(self, segment: Segment, *, recent: bool = True) -> None:
        """Ignored if a segment with a higher id holds some of its offsets: that one is newer."""
        blocks = self._blocks(segment.topic, segment.partition_id, recent=recent)
        size = blocks.size
        blocks.add(segment)
        self._grown(blocks, size)

    def remove(self, segment: Segment) -> None:
        """Also spoils fetches of that partition, so that none brings it back."""
        self._removed[segment.id] = segment
        if len(self._removed) > self.policy.removed_remembered:
            self._removed.popitem(last=False)
        self._spoil(segment.topic, segment.partition_id)
        blocks = self._topics.get(segment.topic, {}).get(segment.partition_id)
        if blocks is not None and blocks.remove(segment):
            self._size -= 1

    def forget(self, segments: Iterable[Segment]) -> None:
        """They may be gone: the next lookup asks. Unlike `remove`, it believes a fetch that still finds them."""
        for segment in segments:
            self._spoil(segment.topic, segment.partition_id)
            blocks = self._topics.get(segment.topic, {}).get(segment.partition_id)
            if blocks is not None and blocks.remove(segment):
                self._size -= 1

    def replace(self, old: Iterable[Segment], new: Iterable[Segment]) -> None:
        """A merge: no lookup sees anything in between."""
        for segment in old:
            self.remove(segment)
        for segment in new:
            self.add(segment)

    def remove_before(self, topic: str, partition_id: int, offset: int) -> None:
        """Those that end below the offset."""
        self._spoil(topic, partition_id)
        blocks = self._topics.get(topic, {}).get(partition_id)
        if blocks is not None:
            size = blocks.size
            for segment in blocks.between(0, offset - 1):
                if segment.end_offset < offset:
                    blocks.remove(segment)
            self._size += blocks.size - size

    def drop_partition(self, topic: str, partition_id: int) -> None:
        self._spoil(topic, partition_id)
        if (topic, partition_id) in self._recency:
            self._discard(topic, partition_id)

    def drop_topic(self, topic: str) -> None:
        self._flights.spoil_where(lambda key: key[0] == topic)
        for partition_id in list(self._topics.get(topic, ())):
            self._discard(topic, partition_id)

    def clear(self) -> None:
        """After a gap in the events nothing in memory can be trusted."""
        self._flights.spoil_all()
        for topic, partition_id in list(self._recency):
            self._discard(topic, partition_id)

    async def close(self) -> None:
        await self._flights.close()

    # ---- counting -----------------------------------------------------------------------------------------

    @property
    def hits(self) -> int:
        return self._past_hits + sum(blocks.hits for blocks in self._recency.values())

    @property
    def evictions(self) -> int:
        """Segments pushed out by a bound."""
        return self._past_evictions + sum(blocks.evictions for blocks in self._recency.values())

    def reset_counts(self) -> None:
        self.misses = self.fetches = self._past_hits = self._past_evictions = 0
        for blocks in self._recency.values():
            blocks.hits = blocks.hits_at_sweep = blocks.evictions = 0

    # ---- fetching -----------------------------------------------------------------------------------------

    def _start(self, topic: str, partition_id: int, offset: int, floor: Position) -> Flight[list[Segment]]:
        blocks = self._topics.get(topic, {}).get(partition_id)
        by_page = blocks is None or blocks.more or offset <= blocks.end
        suspect = blocks.search(offset) if blocks is not None else None
        more = False

        async def ask() -> list[Segment]:
            nonlocal more
            self.fetches += 1
            if by_page:
                rows = await self._store.get_segments(topic, partition_id, from_offset=offset, limit=self._page)
                more = len(rows) >= self._page
                if rows:
                    return rows
            # The tail. And only this verb tells a partition that does not exist from an empty one.
            try:
                one = await self._store.find_segment_for_offset(topic, partition_id, offset)
            except NotFound:
                self.drop_partition(topic, partition_id)
                raise
            more = one is not None
            return [one] if one is not None else []

        def land(flight: Flight[list[Segment]], rows: list[Segment]) -> list[Segment]:
            if flight.current and any(self._removed.get(row.id) == row for row in rows):
                flight.current = False
            if flight.current:
                if suspect is not None and _holding(rows, offset) is None:
                    self.remove(suspect)
                self._keep(topic, partition_id, offset, rows, more=more)
            return rows

        return self._flights.start((topic, partition_id, offset), floor, ask, land)

    def _keep(self, topic: str, partition_id: int, offset: int, rows: list[Segment], *, more: bool) -> None:
        blocks = self._blocks(topic, partition_id, recent=True)
        size = blocks.size
        if not more:
            blocks.more = False
        elif rows[-1].end_offset >= blocks.end:
            blocks.more = True
        blocks.cover(offset, rows)
        self._grown(blocks, size)

    # ---- keeping within bounds ----------------------------------------------------------------------------

    def _blocks(self, topic: str, partition_id: int, *, recent: bool) -> SegmentBlocks:
        partitions = self._topics.setdefault(topic, {})
        blocks = partitions.get(partition_id)
        if blocks is None:
            bound = min(self.policy.max_segments_per_partition, self.policy.max_segments)
            blocks = partitions[partition_id] = self._recency[topic, partition_id] = SegmentBlocks(bound)
            if not recent:
                self._recency.move_to_end((topic, partition_id), last=False)
            if len(self._recency) > self.policy.max_partitions:
                self._evict_partition(blocks)
        return blocks

    def _grown(self, blocks: SegmentBlocks, size_before: int) -> None:
        self._size += blocks.size - size_before
        while self._size > self.policy.max_segments and len(self._recency) > 1:
            self._evict_partition(blocks)

    def _evict_partition(self, kept: SegmentBlocks) -> None:
        """Second chance: one that was read since the last sweep goes to the back of the queue instead.

        True recency would cost every lookup a move in a linked list; this costs it nothing.
        """
        while len(self._recency) > 1:
            key, blocks = next(iter(self._recency.items()))
            if blocks is not kept and blocks.hits == blocks.hits_at_sweep:
                self._past_evictions += blocks.size
                self._discard(*key)
                return
            blocks.hits_at_sweep = blocks.hits
            self._recency.move_to_end(key)

    def _discard(self, topic: str, partition_id: int) -> None:
        blocks = self._recency.pop((topic, partition_id))
        del self._topics[topic][partition_id]
        if not self._topics[topic]:
            del self._topics[topic]
        self._size -= blocks.size
        self._past_hits += blocks.hits
        self._past_evictions += blocks.evictions

    def _spoil(self, topic: str, partition_id: int) -> None:
        if self._flights:
            self._flights.spoil_where(lambda key: key[0] == topic and key[1] == partition_id)


def _holding(rows: list[Segment], offset: int) -> Segment | None:
    """A page starts with the segment that holds the offset, if there is one."""
    return rows[0] if rows and rows[0].base_offset <= offset <= rows[0].end_offset else None
