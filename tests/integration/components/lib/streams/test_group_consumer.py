"""Members of a group share its partitions: one reads each, whoever comes, goes, dies or sleeps."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

import pytest

from astha.clock import SystemLoopClock
from components.lib.streams.consumer import PolledRecords
from components.lib.streams.group_consumer import GroupConsumer
from components.lib.streams.offsets import ConsumerGroups
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, decode
from components.lib.streams.reader.prefetch import Prefetcher, PrefetchPolicy
from components.lib.streams.reader.reader import Reader
from registry.inputs import OffsetDraft
from registry.models import GroupLease
from tests.doubles.clock import ManualClock
from tests.integration.components.lib.streams.harness import TOPIC, Bench
from tests.streams import kill_agent, releases_done

LEASE_MS = 10_000
PARTITIONS = 3

Join: TypeAlias = Callable[[], GroupConsumer]


class RegistryTime(SystemLoopClock):
    """The test says when leases run out."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()


@pytest.fixture
async def join(bench: Bench, clock: ManualClock) -> AsyncIterator[Join]:
    cache: BlockCache[CachedBlock] = BlockCache(bench.objects, decode)
    reader = Reader(bench.change_feed, cache, RegistryTime(clock))
    yield lambda: GroupConsumer(
        Prefetcher(reader, PrefetchPolicy(total_bytes=0)), "readers", TOPIC, lease_s=LEASE_MS / 1000
    )
    await cache.close()


async def settle(*members: GroupConsumer) -> None:
    """As if their upkeep had run a few times: whoever gives a partition away does it when it is asked for records."""
    for _ in range(2):
        for member in members:
            await member.agent.renew()
            await member.agent.balance()
            await asyncio.sleep(0)  # what has to go begins to
            await member._sync_assignment()
            await releases_done(member.agent)
    for member in members:
        await member._sync_assignment()


async def drain(*members: GroupConsumer) -> dict[int, list[int]]:
    """Everything that is there, by partition."""
    seen: dict[int, list[int]] = defaultdict(list)
    for member in members:
        while (polled := await member.poll(max_records=2)) is not None:
            seen[polled.partition_id] += offsets_of(polled)
    return seen


def offsets_of(polled: PolledRecords) -> list[int]:
    return [record.offset for record in polled.records]


async def test_members_that_come_and_go_share_and_nothing_comes_twice(bench: Bench, join: Join) -> None:
    for partition in range(PARTITIONS):
        await bench.write(4, partition=partition)
    async with join() as first:
        assert first.partitions == [0, 1, 2]
        polled = await first.poll(max_records=2)
        assert polled is not None
        async with join() as second:
            assert second.partitions == []  # nothing is taken from whoever reads it
            await settle(first, second)
            assert sorted(first.partitions + second.partitions) == [0, 1, 2]
            assert len(second.partitions) in (1, 2)
            seen = await drain(first, second)
            seen[polled.partition_id][:0] = offsets_of(polled)
            assert seen == {partition: [0, 1, 2, 3] for partition in range(PARTITIONS)}
            await first.commit()
            await second.commit()
        for partition in range(PARTITIONS):
            await bench.write(2, partition=partition)
        bench.change_feed.resume(bench.cached.applied)
        await settle(first)
        assert first.partitions == [0, 1, 2]
        assert await drain(first) == {partition: [4, 5] for partition in range(PARTITIONS)}
        await first.commit()
    assert [lag.lag for lag in await ConsumerGroups(bench.store).lag("readers")] == [0, 0, 0]
    assert await bench.store.list_agents() == []


async def test_who_slept_too_long_commits_nothing_and_reads_on_elsewhere(
    bench: Bench, join: Join, clock: ManualClock
) -> None:
    for partition in range(PARTITIONS):
        await bench.write(6, partition=partition)
    async with join() as sleeper, join() as other:
        await settle(sleeper, other)
        old = {number: await sleeper.poll(max_records=2) for number in sleeper.partitions}
        assert all(old.values())
        clock.advance(LEASE_MS + 1)
        await settle(other)
        assert other.partitions == [0, 1, 2]
        seen = await drain(other)
        assert seen == {partition: list(range(6)) for partition in range(PARTITIONS)}
        await other.commit()
        await sleeper.commit()
        assert [row.committed_offset for row in await bench.store.get_consumer_offsets("readers")] == [6, 6, 6]
        assert await sleeper.poll() is None
        assert sleeper.partitions == []
        await settle(sleeper, other)
        assert sleeper.partitions
        assert sorted(sleeper.partitions + other.partitions) == [0, 1, 2]
        assert await drain(sleeper, other) == {}


async def test_whoever_is_asleep_notices_before_it_reads_on(bench: Bench, join: Join, clock: ManualClock) -> None:
    await bench.write(6)
    async with join() as sleeper:
        assert await sleeper.poll(max_records=1) is not None
        clock.advance(LEASE_MS + 1)
        async with join() as other:
            await settle(other)
            assert 0 in other.partitions
            assert await sleeper.poll() is None
        clock.advance(LEASE_MS + 1)  # nobody wanted it this time
        await settle(sleeper)
        polled = await sleeper.poll(max_records=1)
        assert polled is not None
        assert offsets_of(polled) == [0]
        clock.advance(LEASE_MS + 1)
        polled = await sleeper.poll(max_records=1)
        assert polled is not None
        assert offsets_of(polled) == [1]


class Commits:
    """Every commit that the registry has accepted must go forward."""

    def __init__(self, bench: Bench) -> None:
        self._commit = bench.cached.inner.commit_offsets
        self.last: dict[int, int] = {}

    async def __call__(self, group: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()) -> None:
        await self._commit(group, offsets, leases=leases)
        for draft in offsets:
            assert draft.committed_offset >= self.last.get(draft.partition_id, 0), "a commit went back"
            self.last[draft.partition_id] = draft.committed_offset


class Crowd:
    """Members that do anything at any time. ``seen`` is what they were given, ``written`` how many there are."""

    def __init__(self, bench: Bench, join: Join, clock: ManualClock, seed: int) -> None:
        self._bench, self._join, self._clock = bench, join, clock
        self._chance = random.Random(seed)
        self._members: list[GroupConsumer] = []
        self.seen: dict[int, set[int]] = defaultdict(set)
        self.written = dict.fromkeys(range(PARTITIONS), 0)

    async def step(self) -> None:
        alone = (self.write, self.join, self.sleep)
        together = (self.leave, self.die, self.balance, self.balance, self.poll, self.poll, self.commit)
        await self._chance.choice((*alone, *together) if self._members else alone)()

    async def write(self) -> None:
        partition = self._chance.randrange(PARTITIONS)
        self.written[partition] += 3
        self._bench.tell((await self._bench.write(3, partition=partition))[-1:])

    async def join(self) -> None:
        if len(self._members) < 4:
            self._members.append(await self._join().__aenter__())

    async def sleep(self) -> None:
        self._clock.advance(self._chance.choice((1_000, LEASE_MS // 2, LEASE_MS + 1)))

    async def leave(self) -> None:
        member = self._one(gone=True)
        if self._chance.random() < 0.5:
            await member.commit()
        await member.__aexit__(None, None, None)

    async def die(self) -> None:
        await kill(self._one(gone=True))

    async def balance(self) -> None:
        await settle(self._one())

    async def poll(self) -> None:
        polled = await self._one().poll(max_records=self._chance.randint(1, 4))
        if polled is not None:
            self.seen[polled.partition_id].update(offsets_of(polled))

    async def commit(self) -> None:
        await self._one().commit()

    async def end(self) -> None:
        """All die; one more comes, and reads what is left."""
        while self._members:
            await self.die()
        self._clock.advance(LEASE_MS + 1)
        async with self._join() as last:
            for partition, offsets in (await drain(last)).items():
                self.seen[partition].update(offsets)
            await last.commit()

    def _one(self, *, gone: bool = False) -> GroupConsumer:
        place = self._chance.randrange(len(self._members))
        return self._members.pop(place) if gone else self._members[place]


@pytest.mark.parametrize("seed", range(3))
async def test_random_members(
    bench: Bench, join: Join, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever they do, the group has every record, and what it commits only goes forward."""
    commits = Commits(bench)
    monkeypatch.setattr(bench.cached.inner, "commit_offsets", commits)
    crowd = Crowd(bench, join, clock, seed)
    for _ in range(120):
        await crowd.step()
    await crowd.end()
    assert {partition: len(crowd.seen[partition]) for partition in crowd.written} == crowd.written
    assert {partition: commits.last.get(partition, 0) for partition in crowd.written} == crowd.written


async def kill(member: GroupConsumer) -> None:
    """Nothing is committed or released."""
    await kill_agent(member.agent)
    await member._consumer.__aexit__(None, None, None)
