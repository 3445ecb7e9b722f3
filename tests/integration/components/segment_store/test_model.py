"""Random appends, reads, merges, retention and restarts, against lists in memory.

What was acknowledged is read back once, in order, unchanged, by a reader that has followed everything and by one that
has just begun; nothing else is. SEED=... repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.sources.opening import open_follower
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import LakeSettings, Surroundings
from components.lake.cleaner import clean_intents
from components.segment_store.agents import Agent
from components.segment_store.following import Following
from components.segment_store.reading import Reading
from components.segment_store.upkeep.merging import Merger
from components.segment_store.upkeep.plan import MergePolicy
from components.segment_store.upkeep.retention import Retention
from components.segment_store.writer import SegmentWriter, WriterSettings
from registry.contract import MetadataStore
from registry.opening import open_store
from registry.position import Position

TOPIC, PARTITIONS, STEPS = "model", 3, 60
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))


class World:
    def __init__(self, around: Surroundings, seed: int) -> None:
        self.around = around
        self.random = random.Random(seed)
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.reading = Reading(around)
        self.merger = Merger(
            around.store, self.reading.objects, self.reading.cache, around.clock,
            Path(around.lake.warehouse, "merged").as_uri(), MergePolicy(fewest=2, settled_ms=0),
        )  # fmt: skip
        self._writing = AsyncExitStack()
        self._writer: SegmentWriter | None = None

    async def step(self) -> None:
        ways = (self.append, self.append, self.append, self.read, self.read, self.merge, self.trim, self.restart)
        await self.random.choice(ways)()

    async def append(self) -> None:
        """To several partitions at once."""
        if self._writer is None:
            agent = await self._writing.enter_async_context(Agent(self.around.store, self.around.clock))
            settings = WriterSettings(block_bytes=200)
            self._writer = await self._writing.enter_async_context(SegmentWriter(self.around, agent, settings))
        writer = self._writer

        async def to(partition: int) -> None:
            count = self.random.choice((1, 1, 3, 30))
            first = len(self.written[partition])
            values = [b"%d/%d" % (partition, first + number) for number in range(count)]
            appended = await writer.append(TOPIC, partition, values)
            assert appended.base_offset == first
            self.written[partition] += values

        chosen = self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))
        await asyncio.gather(*map(to, chosen))

    async def read(self) -> None:
        """Somewhere, a little, by whom has followed everything: what it has just written it may have to wait for."""
        partition = self.random.randrange(PARTITIONS)
        wanted = self.written[partition]
        bounds = await self.reading.reader.bounds(TOPIC, partition)
        assert bounds.end == len(wanted)
        if bounds.start < bounds.end:
            offset = self.random.randrange(bounds.start, bounds.end)
            most = self.random.choice((1, 5, None))
            found = await self.reading.reader.read(TOPIC, partition, offset, max_records=most, wait_s=30)
            values = [record.value for record in found]
            assert values
            assert values == wanted[offset : offset + len(values)]

    async def merge(self) -> None:
        await self.merger.merge([(TOPIC, partition) for partition in range(PARTITIONS)])

    async def trim(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        offset = self.random.randint(0, len(self.written[partition]) // 2)
        before = await self.reading.reader.bounds(TOPIC, partition)
        await Retention(self.around.store, self.around.clock, 2).delete_before(TOPIC, partition, offset)
        bounds = await self.reading.reader.bounds(TOPIC, partition)
        assert before.start <= bounds.start <= max(before.start, offset)

    async def restart(self) -> None:
        """The writer ends; the next one takes its leases over."""
        self._writer = None
        await self._writing.aclose()

    async def check(self, reading: Reading) -> None:
        for partition, wanted in enumerate(self.written):
            bounds = await reading.reader.bounds(TOPIC, partition)
            assert bounds.end == len(wanted)
            seen: list[bytes | None] = []
            offset = bounds.start
            while len(found := await reading.reader.read(TOPIC, partition, offset)):
                assert [record.offset for record in found] == list(range(offset, found.next_offset))
                seen += [record.value for record in found]
                offset = found.next_offset
            assert seen == wanted[bounds.start :]


def objects_below(warehouse: Path) -> set[str]:
    return {path.as_uri() for path in warehouse.rglob("*.segments")}


@pytest.fixture
async def real_store(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(url)
    yield store
    await store.close()


async def test_the_log_is_what_was_acknowledged(url: str, real_store: MetadataStore, warehouse: Path) -> None:
    print(f"SEED={SEED}")  # noqa: T201  (shown when it fails)
    clock = SystemLoopClock()
    around = Surroundings(real_store, clock, SecretStr(url), LakeSettings(warehouse=str(warehouse)))
    await real_store.create_topic(TOPIC, PARTITIONS)
    world = World(around, SEED)
    follower = open_follower(url, PostgresSourceSettings(), TailSettings(), clock)
    async with Following(follower, world.reading.feed):
        for _ in range(STEPS):
            await world.step()
        await world.restart()
        await clean_intents(real_store, world.reading.objects, 0, "cleaner")
        await world.check(world.reading)
    cold = Reading(around)
    cold.feed.resume(Position(1))
    await world.check(cold)
    live = {segment.uri for number in range(PARTITIONS) async for segment in real_store.stream_segments(TOPIC, number)}
    assert objects_below(warehouse) == live
    await cold.close()
    await world.reading.close()
