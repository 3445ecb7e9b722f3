"""The index compared with a plain list over random histories, and with a registry whose events are late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from astha.events import Operation
from registry.cache.partition_segments import PartitionSegments
from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.models import Segment
from tests.doubles.memory_store import MemoryStore

Step: TypeAlias = tuple[str, int, int]

offsets = st.integers(0, 250)
steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "fill", "remove", "replace", "find", "find", "cross", "walk", "before", "deliver"]),
        offsets,
        st.integers(1, 12),
    ),
    min_size=20,  # short histories rarely fail
    max_size=60,
)
FETCHES = ("get_segments", "find_segment_for_offset")

bounds = st.sampled_from([4, 5, 8, 16, 64, 5_000])


def holding(rows: list[Segment], offset: int) -> Segment | None:
    return next((row for row in rows if row.base_offset <= offset <= row.end_offset), None)


@settings(max_examples=50, deadline=None)
@given(steps=steps)
def test_blocks_without_eviction_equal_a_sorted_list(steps: list[Step]) -> None:
    blocks = PartitionSegments(4 * 3 + 100_000)
    blocks._block_size = 3
    naive: list[Segment] = []
    store = MemoryStore()
    for verb, offset, width in steps:
        if verb in ("add", "fill", "replace"):
            row = store.segment("t", 0, offset, offset + width - 1)
            naive = [
                other for other in naive if other.end_offset < row.base_offset or other.base_offset > row.end_offset
            ]
            naive = sorted([*naive, row], key=lambda row: row.base_offset)
            blocks.add(row)
        elif verb in ("remove", "before") and naive:
            row = naive.pop(offset % len(naive))
            assert blocks.remove(row)
            assert not blocks.remove(row)
        else:
            assert blocks.search(offset) == holding(naive, offset)
            assert blocks.between(offset, offset + width) == [
                row for row in naive if row.base_offset <= offset + width and row.end_offset >= offset
            ]
        assert list(blocks) == naive
        assert blocks.size == len(naive)
        assert blocks.end == (naive[-1].end_offset if naive else -1)
        assert all(0 < len(block.bases) <= 3 for block in blocks.blocks)
        assert all(key == block.bases[0] for key, block in zip(blocks.firsts, blocks.blocks, strict=True))


class History:
    """A registry with other writers, an index, and the number of delivered events."""

    def __init__(self, bound: int, page: int, remembered: int = 8_192) -> None:
        self.store = MemoryStore()
        policy = IndexPolicy(
            max_segments=5_000, max_segments_per_partition=bound, page=page, removed_remembered=remembered
        )
        self.index = SegmentIndex(self.store, policy)
        self.delivered = 0
        self.removed: set[int] = set()

    async def start(self, segments: int = 0) -> None:
        """Starts with segments that no event announces."""
        await self.store.create_topic("t", 1)
        for n in range(segments):
            self.write("add", n * 5, 5)
        self.store.changes.clear()

    @property
    def truth(self) -> list[Segment]:
        return sorted(self.store.state.segments.values(), key=lambda row: row.base_offset)

    def write(self, verb: str, offset: int, width: int) -> None:
        truth = self.truth
        if verb == "add":
            if not any(row.base_offset < offset + width and row.end_offset >= offset for row in truth):
                self.store.commit((None, self.store.segment("t", 0, offset, offset + width - 1)))
        elif verb == "fill":
            end = truth[-1].end_offset + 1 if truth else 0
            self.store.commit(*((None, self.store.segment("t", 0, end + 2 * n, end + 2 * n + 1)) for n in range(width)))
        elif verb == "cross" and truth:
            near = [row for row in truth if row.end_offset >= offset] or truth
            self.store.commit((near[0], None))
        elif verb == "remove" and truth:
            self.store.commit((truth[offset % len(truth)], None))
        elif verb == "before":
            self.store.commit(*((row, None) for row in truth if row.end_offset < offset))
        elif verb == "replace" and truth:
            old = truth[offset % len(truth) :][:width]
            merged = self.store.segment("t", 0, old[0].base_offset, old[-1].end_offset)
            self.store.commit(*((row, None) for row in old), (None, merged))

    def deliver(self, count: int) -> None:
        """Delivers events one by one: a transaction may be seen half-way."""
        pending = self.store.changes[self.delivered : self.delivered + count]
        for change in pending:
            row = change.data
            assert isinstance(row, Segment)
            if change.operation == Operation.DELETE:
                self.index.apply(row, None)
                self.removed.add(row.id)
            else:
                self.index.apply(None, row)
        self.delivered += len(pending)


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


@settings(max_examples=50, deadline=None)
@given(steps=steps, bound=bounds, page=st.integers(1, 9))
def test_with_immediate_events_the_index_equals_the_registry(steps: list[Step], bound: int, page: int) -> None:
    async def history() -> None:
        it = History(bound, page)
        await it.start()
        for verb, offset, width in steps:
            it.write(verb, offset, width)
            it.deliver(1_000)
            assert set(it.index.held("t", 0)) <= set(it.truth)
            assert len(it.index) <= bound
            if verb in ("find", "cross"):
                assert await it.index.find("t", 0, offset) == holding(it.truth, offset)
            elif verb == "walk":
                for step in range(offset, offset + width):
                    assert await it.index.find("t", 0, step) == holding(it.truth, step)

    run(history())


class HeldUp(History):
    """Its fetches can be delayed, so that writes and events overtake them."""

    def __init__(self, bound: int, page: int, remembered: int) -> None:
        super().__init__(bound, page, remembered)
        self.running: list[tuple[int, int, set[int], asyncio.Task[Segment | None]]] = []

    def hold(self) -> None:
        for verb in FETCHES:
            if verb not in self.store.gates:
                self.store.hold(verb)

    def find(self, offset: int) -> None:
        task = asyncio.create_task(self.index.find("t", 0, offset))
        self.running.append((offset, len(self.store.states) - 1, set(self.removed), task))

    async def settle(self) -> None:
        """An offset that exists during the whole call is found; one that was removed before it is not."""
        for verb in FETCHES:
            if verb in self.store.gates:
                self.store.release(verb)
        for offset, since, removed, task in self.running:
            found = await task
            seen = [holding(list(state.segments.values()), offset) for state in self.store.states[since:]]
            assert found is not None or None in seen
            assert found is None or found.base_offset <= offset <= found.end_offset
            assert found is None or found.id not in removed
        self.running.clear()


@settings(max_examples=70, deadline=None)
@given(
    steps=steps,
    bound=bounds,
    page=st.integers(1, 9),
    remembered=st.sampled_from([0, 8_192]),
    turns=st.lists(st.integers(0, 5), min_size=60, max_size=60),
)
def test_fetches_that_cross_events_never_bring_segments_back(
    steps: list[Step], bound: int, page: int, remembered: int, turns: list[int]
) -> None:
    async def history() -> None:
        it = HeldUp(bound, page, remembered)
        await it.start(segments=30)
        for (verb, offset, width), pause in zip(steps, turns, strict=False):
            if verb in ("find", "cross"):
                if pause > 1:
                    it.hold()
                it.find(offset)
                for _ in range(pause):
                    await asyncio.sleep(0)
            it.write(verb, offset, width)  # "cross": removes just what is being fetched
            if verb in ("deliver", "cross"):
                it.deliver(width if verb == "deliver" else 1_000)
            elif verb == "walk":
                await it.settle()
            assert not {row.id for row in it.index.held("t", 0)} & it.removed
            assert len(it.index) == len(it.index.held("t", 0)) <= bound
        await it.settle()
        it.deliver(1_000)
        assert set(it.index.held("t", 0)) <= set(it.truth)
        for offset in range(0, 300, 11):
            assert await it.index.find("t", 0, offset) == holding(it.truth, offset)

    run(history())
