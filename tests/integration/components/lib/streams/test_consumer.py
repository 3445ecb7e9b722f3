"""Consumers and their groups: turns, notifications, commits, prefetching."""

from __future__ import annotations

import asyncio

import pytest

from components.lib.streams.consumer import Consumer
from components.lib.streams.errors import OffsetTooOld
from components.lib.streams.offsets import GroupOffsets
from components.lib.streams.reader.prefetch import Cursor, Prefetcher, PrefetchPolicy
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness, numbers
from tests.waiting import eventually

NO_PREFETCH = PrefetchPolicy(total_bytes=0)


def consumer_of(harness: StreamHarness, offsets: dict[int, int], **options: object) -> Consumer:
    return Consumer(Prefetcher(harness.reader, NO_PREFETCH), TOPIC, offsets, **options)  # type: ignore[arg-type]


async def test_partitions_take_turns_and_each_record_is_read_once(harness: StreamHarness) -> None:
    for partition in range(3):
        await harness.write(6, partition=partition, per_block=2)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    turns = []
    async with consumer_of(harness, {0: 0, 1: 0, 2: 3}) as consumer:
        while (polled := await consumer.poll(max_records=2)) is not None:
            turns.append(polled.partition_id)
            seen[polled.partition_id] += [record.offset for record in polled.records]
    assert seen == {0: list(range(6)), 1: list(range(6)), 2: [3, 4, 5]}
    assert turns[:6] == [0, 1, 2, 0, 1, 2]


async def test_partitions_at_their_end_cost_nothing_until_a_notification(harness: StreamHarness) -> None:
    async with consumer_of(harness, {0: 0, 1: 0, 2: 0}) as consumer:
        assert await consumer.poll() is None
        fetches = harness.cached.index.fetches
        assert await consumer.poll() is None
        assert harness.cached.index.fetches == fetches
        waiting = asyncio.create_task(consumer.poll(wait_s=30))
        harness.publish(await harness.write(2, partition=1))
        polled = await waiting
        assert polled is not None
        assert (polled.partition_id, len(polled.records)) == (1, 2)
        assert harness.cached.index.fetches <= fetches + 1
        await harness.write(2, partition=2)
        harness.change_feed.resume(harness.cached.applied)  # no event, but a gap
        polled = await consumer.poll(wait_s=30)
        assert polled is not None
        assert polled.partition_id == 2


async def test_new_blocks_of_several_partitions_are_prefetched_together(harness: StreamHarness) -> None:
    async with Consumer(Prefetcher(harness.reader), TOPIC, {0: 0, 1: 0, 2: 0}) as consumer:
        assert await consumer.poll() is None
        drafts = [(await harness.put_object([2], partition, first=0))[0] for partition in range(3)]
        await harness.join_objects(drafts)
        fetches = harness.cached.index.fetches
        harness.publish([row for partition in range(3) for row in await harness.store.get_segments(TOPIC, partition)])
        seen = {}
        while (polled := await consumer.poll()) is not None:
            seen[polled.partition_id] = [record.offset for record in polled.records]
        assert seen == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
        assert len(harness.objects.requests) == 1
        assert harness.reader.cache.counts.hit_rate == 1.0
        assert harness.cached.index.fetches == fetches


async def test_a_group_resumes_where_it_committed(harness: StreamHarness) -> None:
    await harness.write(4, per_block=2)
    await harness.write(3, partition=1)
    groups = GroupOffsets(harness.store)
    assert await groups.resume_offsets("readers", TOPIC, [0, 1, 2]) == {0: 0, 1: 0, 2: 0}
    assert await groups.resume_offsets("readers", TOPIC, [0, 1, 2], "latest") == {0: 4, 1: 3, 2: 0}
    async with consumer_of(harness, {0: 0, 1: 0}, group="readers") as consumer:
        await consumer.poll(max_records=2)
        await consumer.commit()
        await consumer.poll(max_records=1)  # not committed
    assert await groups.resume_offsets("readers", TOPIC, [0, 1]) == {0: 2, 1: 0}
    assert [group.group_id for group in await groups.list_groups()] == ["readers"]


async def test_lag_counts_retained_and_lost_records(harness: StreamHarness) -> None:
    await harness.write(5, 5, 5)
    groups = GroupOffsets(harness.store)
    await groups.commit("readers", TOPIC, {0: 7})
    first, *others = await groups.lag("readers")
    assert (first.committed, first.lag, first.lost) == (7, 8, 0)
    assert [(lag.committed, lag.lag) for lag in others] == [(None, 0), (None, 0)]
    await harness.store.delete_segments_before(TOPIC, 0, 10)
    first, *_ = await groups.lag("readers", TOPIC)
    assert (first.start, first.lag, first.lost) == (10, 5, 3)
    assert await groups.lag("unknown") == []


@pytest.mark.parametrize(("reset", "at", "skipped"), [("earliest", 5, 5), ("latest", 10, 10)])
async def test_records_deleted_before_they_were_read(harness: StreamHarness, reset: str, at: int, skipped: int) -> None:
    await harness.write(5, 5)
    await harness.store.delete_segments_before(TOPIC, 0, 5)
    async with consumer_of(harness, {0: 0}) as strict:
        with pytest.raises(OffsetTooOld):
            await strict.poll()
    async with consumer_of(harness, {0: 0}, reset=reset) as consumer:
        polled = await consumer.poll()
        if polled is not None:
            assert polled.records.batches[0].first_offset == at
        assert consumer.offsets == {0: 10}
        assert consumer.skipped == skipped


async def test_the_next_blocks_are_prefetched(harness: StreamHarness) -> None:
    await harness.write(50, per_block=10)
    prefetcher = Prefetcher(harness.reader)
    cursor = Cursor(prefetcher, TOPIC, 0, 0)
    found = await cursor.next(max_records=10)
    await eventually(lambda: len(harness.reader.cache) == 5, "all blocks in the cache")
    assert len(harness.objects.requests) == 2  # the first block; then the four adjacent ones together
    seen = numbers([record.value for record in found])
    while len(found := await cursor.next(max_records=10)):
        seen += numbers([record.value for record in found])
    assert seen == list(range(50))
    assert len(harness.objects.requests) == 2
    await eventually(lambda: prefetcher.in_flight_bytes == 0, "nothing in flight")
    await cursor.close()


async def test_prefetching_is_bounded_per_consumer_and_in_total(harness: StreamHarness) -> None:
    (segment,) = await harness.write(100, per_block=10)
    await harness.write(100, partition=1, per_block=10)
    block = segment.size_bytes // 10
    prefetcher = Prefetcher(harness.reader, PrefetchPolicy(consumer_bytes=3 * block + 50, total_bytes=4 * block + 50))
    for partition in (0, 1):
        await harness.reader.read(TOPIC, partition, 0, max_records=1)
    harness.objects.requests.clear()
    first, second = prefetcher.start(TOPIC, [(0, 10)]), prefetcher.start(TOPIC, [(1, 10)])
    assert first is not None
    await asyncio.sleep(0)
    assert prefetcher.in_flight_bytes <= 4 * block + 50
    await asyncio.gather(*(task for task in (first, second) if task is not None))
    assert sum(length for _, _, length in harness.objects.requests) <= 6 * block + 100
    assert prefetcher.in_flight_bytes == 0
    assert Prefetcher(harness.reader, NO_PREFETCH).start(TOPIC, [(0, 80)]) is None
