"""Consumers and their groups: turns, news, what is remembered, what is fetched ahead."""

from __future__ import annotations

import asyncio

import pytest

from components.lib.streams.consumer import Consumer
from components.lib.streams.errors import OffsetTooOld
from components.lib.streams.offsets import ConsumerGroups
from components.lib.streams.reader.prefetch import Cursor, Prefetcher, PrefetchPolicy
from tests.integration.components.lib.streams.harness import TOPIC, Bench, numbers
from tests.waiting import eventually

NO_AHEAD = PrefetchPolicy(total_bytes=0)


def consumer_of(bench: Bench, offsets: dict[int, int], **options: object) -> Consumer:
    return Consumer(Prefetcher(bench.reader, NO_AHEAD), TOPIC, offsets, **options)  # type: ignore[arg-type]


async def test_partitions_take_turns_and_each_record_comes_once(bench: Bench) -> None:
    for partition in range(3):
        await bench.write(6, partition=partition, per_block=2)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    turns = []
    async with consumer_of(bench, {0: 0, 1: 0, 2: 3}) as consumer:
        while (polled := await consumer.poll(max_records=2)) is not None:
            turns.append(polled.partition_id)
            seen[polled.partition_id] += [record.offset for record in polled.records]
    assert seen == {0: list(range(6)), 1: list(range(6)), 2: [3, 4, 5]}
    assert turns[:6] == [0, 1, 2, 0, 1, 2]


async def test_partitions_at_their_end_cost_nothing_until_there_is_news(bench: Bench) -> None:
    async with consumer_of(bench, {0: 0, 1: 0, 2: 0}) as consumer:
        assert await consumer.poll() is None
        fetches = bench.cached.index.fetches
        assert await consumer.poll() is None
        assert bench.cached.index.fetches == fetches
        waiting = asyncio.create_task(consumer.poll(wait_s=30))
        bench.tell(await bench.write(2, partition=1))
        polled = await waiting
        assert polled is not None
        assert (polled.partition_id, len(polled.records)) == (1, 2)
        assert bench.cached.index.fetches <= fetches + 1
        await bench.write(2, partition=2)
        bench.change_feed.resume(bench.cached.applied)  # nobody told of it, but something may have been missed
        polled = await consumer.poll(wait_s=30)
        assert polled is not None
        assert polled.partition_id == 2


async def test_news_of_many_partitions_are_fetched_together_and_asked_of_nobody(bench: Bench) -> None:
    async with Consumer(Prefetcher(bench.reader), TOPIC, {0: 0, 1: 0, 2: 0}) as consumer:
        assert await consumer.poll() is None
        drafts = [(await bench.put_object([2], partition, first=0))[0] for partition in range(3)]
        await bench.join_objects(drafts)
        fetches = bench.cached.index.fetches
        bench.tell([row for partition in range(3) for row in await bench.store.get_segments(TOPIC, partition)])
        seen = {}
        while (polled := await consumer.poll()) is not None:
            seen[polled.partition_id] = [record.offset for record in polled.records]
        assert seen == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
        assert len(bench.objects.requests) == 1
        assert bench.reader.cache.counts.hit_rate == 1.0
        assert bench.cached.index.fetches == fetches


async def test_a_group_resumes_where_it_committed(bench: Bench) -> None:
    await bench.write(4, per_block=2)
    await bench.write(3, partition=1)
    groups = ConsumerGroups(bench.store)
    assert await groups.resume_offsets("readers", TOPIC, [0, 1, 2]) == {0: 0, 1: 0, 2: 0}
    assert await groups.resume_offsets("readers", TOPIC, [0, 1, 2], "latest") == {0: 4, 1: 3, 2: 0}
    async with consumer_of(bench, {0: 0, 1: 0}, group="readers") as consumer:
        await consumer.poll(max_records=2)
        await consumer.commit()
        await consumer.poll(max_records=1)  # not committed: it comes again
    assert await groups.resume_offsets("readers", TOPIC, [0, 1]) == {0: 2, 1: 0}
    assert [group.group_id for group in await groups.list_groups()] == ["readers"]


async def test_lag_counts_what_is_retained_and_says_what_was_lost(bench: Bench) -> None:
    await bench.write(5, 5, 5)
    groups = ConsumerGroups(bench.store)
    await groups.commit("readers", TOPIC, {0: 7})
    first, *others = await groups.lag("readers")
    assert (first.committed, first.lag, first.lost) == (7, 8, 0)
    assert [(lag.committed, lag.lag) for lag in others] == [(None, 0), (None, 0)]
    await bench.store.delete_segments_before(TOPIC, 0, 10)
    first, *_ = await groups.lag("readers", TOPIC)
    assert (first.start, first.lag, first.lost) == (10, 5, 3)
    assert await groups.lag("nobody") == []


@pytest.mark.parametrize(("reset", "at", "skipped"), [("earliest", 5, 5), ("latest", 10, 10)])
async def test_what_was_deleted_before_it_was_read(bench: Bench, reset: str, at: int, skipped: int) -> None:
    await bench.write(5, 5)
    await bench.store.delete_segments_before(TOPIC, 0, 5)
    async with consumer_of(bench, {0: 0}) as strict:
        with pytest.raises(OffsetTooOld):
            await strict.poll()
    async with consumer_of(bench, {0: 0}, reset=reset) as consumer:
        polled = await consumer.poll()
        if polled is not None:
            assert polled.records.batches[0].first_offset == at
        assert consumer.offsets == {0: 10}
        assert consumer.skipped == skipped


async def test_the_next_blocks_come_while_the_last_are_worked_on(bench: Bench) -> None:
    await bench.write(50, per_block=10)
    ahead = Prefetcher(bench.reader)
    cursor = Cursor(ahead, TOPIC, 0, 0)
    found = await cursor.next(max_records=10)
    await eventually(lambda: len(bench.reader.cache) == 5, "all blocks in the cache")
    assert len(bench.objects.requests) == 2  # the first block; then its four neighbours together
    seen = numbers([record.value for record in found])
    while len(found := await cursor.next(max_records=10)):
        seen += numbers([record.value for record in found])
    assert seen == list(range(50))
    assert len(bench.objects.requests) == 2
    await eventually(lambda: ahead.in_flight_bytes == 0, "nothing in flight")
    await cursor.close()


async def test_read_ahead_is_bounded_for_each_and_for_all(bench: Bench) -> None:
    (segment,) = await bench.write(100, per_block=10)
    await bench.write(100, partition=1, per_block=10)
    block = segment.size_bytes // 10
    ahead = Prefetcher(bench.reader, PrefetchPolicy(consumer_bytes=3 * block + 50, total_bytes=4 * block + 50))
    for partition in (0, 1):
        await bench.reader.read(TOPIC, partition, 0, max_records=1)
    bench.objects.requests.clear()
    first, second = ahead.start(TOPIC, [(0, 10)]), ahead.start(TOPIC, [(1, 10)])
    assert first is not None
    await asyncio.sleep(0)
    assert ahead.in_flight_bytes <= 4 * block + 50
    await asyncio.gather(*(task for task in (first, second) if task is not None))
    assert sum(length for _, _, length in bench.objects.requests) <= 6 * block + 100
    assert ahead.in_flight_bytes == 0
    assert Prefetcher(bench.reader, NO_AHEAD).start(TOPIC, [(0, 80)]) is None
