from __future__ import annotations

import asyncio

import pytest

from registry.cache.segment_index import IndexPolicy, SegmentIndex
from registry.errors import NotFound, Unavailable
from registry.models import Segment
from registry.position import Position
from tests.doubles.memory_store import MemoryStore

SMALL = IndexPolicy(max_segments=1_000, max_segments_per_partition=40, max_partitions=3, page=8)


async def a_store(segments: int = 20, topic: str = "t", partitions: int = 1) -> MemoryStore:
    """Segments of ten offsets: 0-9, 10-19, ..."""
    store = MemoryStore()
    await store.create_topic(topic, partitions)
    store.commit(*((None, store.segment(topic, 0, n * 10, n * 10 + 9)) for n in range(segments)))
    store.changes.clear()
    return store


def rows(store: MemoryStore) -> list[Segment]:
    return sorted(store.state.segments.values(), key=lambda row: row.base_offset)


async def test_a_miss_fetches_one_page_that_serves_its_neighbours() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    assert index.lookup("t", 0, 35) is None
    assert await index.find("t", 0, 35) == rows(store)[3]
    assert index.held("t", 0) == rows(store)[3:11]
    for offset in range(30, 110):
        found = index.lookup("t", 0, offset)
        assert found is not None
        assert found.base_offset <= offset <= found.end_offset
    assert store.calls["get_segments"] == 1
    assert store.calls["find_segment_for_offset"] == 0


async def test_a_miss_before_the_cached_range_fetches_a_page() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 100)
    assert await index.find("t", 0, 0) == rows(store)[0]
    assert store.calls["get_segments"] == 2
    assert index.held("t", 0) == [*rows(store)[:8], *rows(store)[10:18]]


async def test_a_miss_at_the_end_is_one_find_and_never_a_reload() -> None:
    store = await a_store(5)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    store.calls.clear()
    for _ in range(3):
        assert await index.find("t", 0, 50) is None
    assert store.calls == {"find_segment_for_offset": 3}


async def test_a_reader_that_catches_up_fetches_pages() -> None:
    store = await a_store(32)
    index = SegmentIndex(store, SMALL)
    for offset in range(320):
        assert await index.find("t", 0, offset) == rows(store)[offset // 10]
    assert store.calls["get_segments"] == 4
    assert store.calls["find_segment_for_offset"] == 0


async def test_a_partition_known_to_be_empty_costs_one_find() -> None:
    store = await a_store(0)
    index = SegmentIndex(store, SMALL)
    assert await index.find("t", 0, 0) is None
    store.calls.clear()
    assert await index.find("t", 0, 0) is None
    assert store.calls == {"find_segment_for_offset": 1}


async def test_an_unknown_partition_is_the_stores_not_found() -> None:
    index = SegmentIndex(await a_store(), SMALL)
    with pytest.raises(NotFound):
        await index.find("t", 7, 0)
    with pytest.raises(NotFound):
        await index.find("nowhere", 0, 0)


async def test_concurrent_callers_of_a_miss_share_one_fetch() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    found = await asyncio.gather(*(index.find("t", 0, 42) for _ in range(50)))
    assert set(found) == {rows(store)[4]}
    assert store.calls["get_segments"] == 1


async def test_a_cancelled_first_caller_does_not_cancel_the_fetch() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    gate = store.hold("get_segments")
    first = asyncio.create_task(index.find("t", 0, 42))
    await gate.reached()
    others = [asyncio.create_task(index.find("t", 0, 42)) for _ in range(3)]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.open()
    assert await asyncio.gather(*others) == [rows(store)[4]] * 3
    assert store.calls["get_segments"] == 1


async def test_a_failed_fetch_fails_its_callers_and_the_next_call_fetches_again() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    store.failures["get_segments"] = Unavailable("gone fishing")
    results = await asyncio.gather(*(index.find("t", 0, 42) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    assert store.calls["get_segments"] == 1
    del store.failures["get_segments"]
    assert await index.find("t", 0, 42) == rows(store)[4]


async def test_a_fetch_does_not_bring_back_a_segment_removed_meanwhile() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    gate = store.hold("get_segments")
    caller = asyncio.create_task(index.find("t", 0, 42))
    await gate.reached()
    gone = rows(store)[4]
    store.commit((gone, None))
    index.apply(gone, None)
    store.release("get_segments")
    assert await caller is None
    assert gone not in index.held("t", 0)


async def test_a_fetch_during_a_merge_returns_the_merged_segment() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    gate = store.hold("get_segments")
    caller = asyncio.create_task(index.find("t", 0, 42))
    await gate.reached()
    old, merged = rows(store)[:10], store.segment("t", 0, 0, 99)
    store.commit(*((row, None) for row in old), (None, merged))
    for row in old:
        index.apply(row, None)
    index.apply(None, merged)
    store.release("get_segments")
    assert await caller == merged
    assert index.lookup("t", 0, 99) == merged


async def test_continuous_removals_end_with_the_stores_result() -> None:
    store = await a_store(100)
    index = SegmentIndex(store, SMALL)

    class Removing(MemoryStore):
        async def get_segments(
            self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = 1_000
        ) -> list[Segment]:
            answer = await store.get_segments(topic, partition_id, from_offset=from_offset, limit=limit)
            victim = rows(store)[-1]
            store.commit((victim, None))
            index.apply(victim, None)
            return answer

        async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
            return await store.find_segment_for_offset(topic, partition_id, offset)

    index = SegmentIndex(Removing(), SMALL)
    assert await index.find("t", 0, 42) == rows(store)[4]
    assert index.held("t", 0) == []


async def test_a_removed_row_that_the_database_still_shows_is_not_cached() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    store.visible = len(store.states) - 1
    gone = rows(store)[4]
    store.commit((gone, None))
    index.apply(gone, None)
    await index.find("t", 0, 42)
    assert gone not in index.held("t", 0)
    store.visible = None
    assert await index.find("t", 0, 42) is None


async def test_an_insert_event_serves_a_caller_whose_fetch_came_too_early() -> None:
    store = await a_store(5)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    gate = store.hold("find_segment_for_offset")
    caller = asyncio.create_task(index.find("t", 0, 55))
    await gate.reached()
    new = store.segment("t", 0, 50, 59)
    store.commit((None, new))
    index.apply(None, new)
    gate.open()
    assert await caller == new


async def test_late_events_of_merged_segments_do_not_evict_the_merged_one() -> None:
    store = await a_store(0)
    index = SegmentIndex(store, SMALL)
    old = [store.segment("t", 0, n * 10, n * 10 + 9) for n in range(5)]
    merged = store.segment("t", 0, 0, 49)
    index.add(merged)
    for row in old:
        index.apply(None, row)
    assert index.held("t", 0) == [merged]
    for row in old:
        index.apply(row, None)
    assert index.held("t", 0) == [merged]


async def test_an_update_replaces_the_row() -> None:
    store = await a_store(3)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    before = rows(store)[1]
    after = store.segment("t", 0, 10, 15, number=before.id)
    index.apply(before, after)
    assert index.lookup("t", 0, 12) == after
    assert index.lookup("t", 0, 17) is None


async def test_the_cursor_does_not_outlive_its_segment() -> None:
    store = await a_store(3)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    row = index.lookup("t", 0, 12)
    assert row is not None
    index.remove(row)
    assert index.lookup("t", 0, 12) is None
    assert index.lookup("t", 0, 22) == rows(store)[2]


async def test_a_segment_that_reaches_past_the_old_start_of_the_next_block_is_found() -> None:
    store = await a_store(0)
    index = SegmentIndex(store, IndexPolicy(max_segments_per_partition=12))  # blocks of three
    for base in (0, 1, 2, 42, 47):
        index.add(store.segment("t", 0, base, base))
    index.add(store.segment("t", 0, 33, 44))  # in place of 42, which began a block
    found = index.lookup("t", 0, 44)
    assert found is not None
    assert found.base_offset == 33


async def test_eviction_keeps_the_limit_and_every_offset_can_be_found() -> None:
    store = await a_store(200)
    index = SegmentIndex(store, SMALL)
    for offset in (*range(0, 2_000, 7), *range(1_999, 0, -13)):
        assert await index.find("t", 0, offset) == rows(store)[offset // 10]
        assert len(index) <= SMALL.max_segments_per_partition
        assert len(index) == len(index.held("t", 0))
    assert index.evictions > 0


async def test_the_block_in_use_is_not_evicted() -> None:
    store = await a_store(0)
    index = SegmentIndex(store, SMALL)
    index.add(store.segment("t", 0, 0, 9))
    for n in range(1, 200):
        assert index.lookup("t", 0, 5) is not None
        index.apply(None, store.segment("t", 0, n * 10, n * 10 + 9))
    assert len(index) <= SMALL.max_segments_per_partition


async def test_partitions_that_are_read_outlive_those_that_are_only_written() -> None:
    store = await a_store(0)
    index = SegmentIndex(store, SMALL)
    for number in range(3):
        index.add(store.segment("t", number, 0, 9))
    index.lookup("t", 0, 5)
    index.add(store.segment("t", 3, 0, 9))
    assert index.held("t", 0)
    assert not index.held("t", 1)
    index.apply(None, store.segment("t", 4, 0, 9))
    assert not index.held("t", 4)
    assert len(index) == 3


async def test_the_total_is_bounded_over_partitions() -> None:
    policy = IndexPolicy(max_segments=50, max_segments_per_partition=40, max_partitions=10, page=8)
    store = await a_store(0)
    index = SegmentIndex(store, policy)
    for number in range(4):
        for n in range(30):
            index.add(store.segment("t", number, n * 10, n * 10 + 9))
            assert len(index) <= 50
    assert len(index.held("t", 3)) == 30


async def test_remove_before_drop_and_clear() -> None:
    store = await a_store(8, partitions=2)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    index.remove_before("t", 0, 35)
    assert index.held("t", 0) == rows(store)[3:]
    index.add(store.segment("t", 1, 0, 9))
    index.drop_partition("t", 0)
    assert len(index) == 1
    index.drop_topic("t")
    assert len(index) == 0
    index.add(store.segment("u", 1, 0, 9))
    index.clear()
    assert len(index) == 0


async def test_a_fetch_across_a_clear_is_not_cached() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    gate = store.hold("get_segments")
    caller = asyncio.create_task(index.find("t", 0, 42))
    await gate.reached()
    index.clear()
    store.release("get_segments")
    assert await caller == rows(store)[4]
    assert store.calls["get_segments"] == 2


async def test_a_caller_with_a_position_does_not_join_an_earlier_fetch() -> None:
    store = await a_store(5)
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    gate = store.hold("find_segment_for_offset")
    early = asyncio.create_task(index.find_in_store("t", 0, 55))
    await gate.reached()
    new = store.segment("t", 0, 50, 59)
    store.commit((None, new))
    late = asyncio.create_task(index.find_in_store("t", 0, 55, as_of=Position(9)))
    await gate.reached(2)
    store.release("find_segment_for_offset")
    assert await late == new
    assert await early == new  # invalidated by the later change, so read again


async def test_counts() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    await index.find("t", 0, 0)
    index.lookup("t", 0, 5)
    index.lookup("t", 0, 15)
    index.lookup("t", 0, 9_999)
    assert (index.hits, index.misses, index.fetches) == (2, 2, 1)
    index.clear()
    assert index.hits == 2
    index.reset_counts()
    assert (index.hits, index.misses, index.fetches, index.evictions) == (0, 0, 0, 0)


async def test_closing_fails_waiting_callers() -> None:
    store = await a_store()
    index = SegmentIndex(store, SMALL)
    gate = store.hold("get_segments")
    caller = asyncio.create_task(index.find("t", 0, 42))
    await gate.reached()
    await index.close()
    with pytest.raises(Unavailable):
        await caller


def test_a_limit_below_the_minimum_is_refused() -> None:
    index = SegmentIndex(MemoryStore(), IndexPolicy(max_segments_per_partition=3))
    with pytest.raises(ValueError, match="at least 4"):
        index.add(MemoryStore().segment("t", 0, 0, 9))
