"""Each partition is read by one member of a group, whether members join, leave, die or are paused."""

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
from components.lib.streams.offsets import GroupOffsets
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, decode
from components.lib.streams.reader.prefetch import Prefetcher, PrefetchPolicy
from components.lib.streams.reader.reader import Reader
from registry.inputs import OffsetDraft
from registry.models import GroupLease
from tests.doubles.clock import ManualClock
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness
from tests.streams import kill_agent, releases_done

LEASE_MS = 10_000
PARTITIONS = 3

Join: TypeAlias = Callable[[], GroupConsumer]


class RegistryTime(SystemLoopClock):
    """The test advances the time of leases."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()


@pytest.fixture
async def join(harness: StreamHarness, clock: ManualClock) -> AsyncIterator[Join]:
    cache: BlockCache[CachedBlock] = BlockCache(harness.objects, decode)
    reader = Reader(harness.change_feed, cache, RegistryTime(clock))
    yield lambda: GroupConsumer(
        Prefetcher(reader, PrefetchPolicy(total_bytes=0)), "readers", TOPIC, lease_s=LEASE_MS / 1000
    )
    await cache.close()


async def settle(*members: GroupConsumer) -> None:
    """Runs what the background tasks do a few times. A member hands a partition over when it is polled."""
    for _ in range(2):
        for member in members:
            await member.agent.renew()
            await member.agent.balance()
            await asyncio.sleep(0)  # starts the releases
            await member._sync_assignment()
            await releases_done(member.agent)
    for member in members:
        await member._sync_assignment()


async def drain(*members: GroupConsumer) -> dict[int, list[int]]:
    """Reads everything, by partition."""
    seen: dict[int, list[int]] = defaultdict(list)
    for member in members:
        while (polled := await member.poll(max_records=2)) is not None:
            seen[polled.partition_id] += offsets_of(polled)
    return seen


def offsets_of(polled: PolledRecords) -> list[int]:
    return [record.offset for record in polled.records]


async def test_members_share_partitions_without_duplicates(harness: StreamHarness, join: Join) -> None:
    for partition in range(PARTITIONS):
        await harness.write(4, partition=partition)
    async with join() as first:
        assert first.partitions == [0, 1, 2]
        polled = await first.poll(max_records=2)
        assert polled is not None
        async with join() as second:
            assert second.partitions == []  # partitions are not taken from active members
            await settle(first, second)
            assert sorted(first.partitions + second.partitions) == [0, 1, 2]
            assert len(second.partitions) in (1, 2)
            seen = await drain(first, second)
            seen[polled.partition_id][:0] = offsets_of(polled)
            assert seen == {partition: [0, 1, 2, 3] for partition in range(PARTITIONS)}
            await first.commit()
            await second.commit()
        for partition in range(PARTITIONS):
            await harness.write(2, partition=partition)
        harness.change_feed.resume(harness.cached.applied)
        await settle(first)
        assert first.partitions == [0, 1, 2]
        assert await drain(first) == {partition: [4, 5] for partition in range(PARTITIONS)}
        await first.commit()
    assert [lag.lag for lag in await GroupOffsets(harness.store).lag("readers")] == [0, 0, 0]
    assert await harness.store.list_agents() == []


async def test_a_member_paused_beyond_its_lease_commits_nothing(
    harness: StreamHarness, join: Join, clock: ManualClock
) -> None:
    for partition in range(PARTITIONS):
        await harness.write(6, partition=partition)
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
        assert [row.committed_offset for row in await harness.store.get_consumer_offsets("readers")] == [6, 6, 6]
        assert await sleeper.poll() is None
        assert sleeper.partitions == []
        await settle(sleeper, other)
        assert sleeper.partitions
        assert sorted(sleeper.partitions + other.partitions) == [0, 1, 2]
        assert await drain(sleeper, other) == {}


async def test_a_paused_member_checks_its_leases_before_it_reads_on(
    harness: StreamHarness, join: Join, clock: ManualClock
) -> None:
    await harness.write(6)
    async with join() as sleeper:
        assert await sleeper.poll(max_records=1) is not None
        clock.advance(LEASE_MS + 1)
        async with join() as other:
            await settle(other)
            assert 0 in other.partitions
            assert await sleeper.poll() is None
        clock.advance(LEASE_MS + 1)  # not acquired by another member this time
        await settle(sleeper)
        polled = await sleeper.poll(max_records=1)
        assert polled is not None
        assert offsets_of(polled) == [0]
        clock.advance(LEASE_MS + 1)
        polled = await sleeper.poll(max_records=1)
        assert polled is not None
        assert offsets_of(polled) == [1]


class Commits:
    """Asserts that committed offsets only advance."""

    def __init__(self, harness: StreamHarness) -> None:
        self._commit = harness.cached.inner.commit_offsets
        self.last: dict[int, int] = {}

    async def __call__(self, group: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()) -> None:
        await self._commit(group, offsets, leases=leases)
        for draft in offsets:
            assert draft.committed_offset >= self.last.get(draft.partition_id, 0), "a commit went back"
            self.last[draft.partition_id] = draft.committed_offset


class RandomMembers:
    """Members with random actions. `seen` has the offsets they have read, `written` the number of records."""

    def __init__(self, harness: StreamHarness, join: Join, clock: ManualClock, seed: int) -> None:
        self._harness, self._join, self._clock = harness, join, clock
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
        self._harness.publish((await self._harness.write(3, partition=partition))[-1:])

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
        """Kills all members; another one reads what is left."""
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
    harness: StreamHarness, join: Join, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The group reads every record, and its committed offsets only advance."""
    commits = Commits(harness)
    monkeypatch.setattr(harness.cached.inner, "commit_offsets", commits)
    members = RandomMembers(harness, join, clock, seed)
    for _ in range(120):
        await members.step()
    await members.end()
    assert {partition: len(members.seen[partition]) for partition in members.written} == members.written
    assert {partition: commits.last.get(partition, 0) for partition in members.written} == members.written


async def kill(member: GroupConsumer) -> None:
    """Nothing is committed or released."""
    await kill_agent(member.agent)
    await member._consumer.__aexit__(None, None, None)
