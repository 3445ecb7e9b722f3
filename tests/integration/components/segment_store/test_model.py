"""Random appends, reads, merges, retention, killed writers and lost leases, compared with lists in memory.

Acknowledged records are read back once, in order, unchanged, by a reader that has followed everything and by one with
empty caches; nothing else is. SEED=... repeats a run. Killed processes: `tests.faults.test_crash_agents`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.sources.factory import open_live_source
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.locations import canonical, join
from components.lib.streams.errors import AppendFailed
from components.lib.streams.feed_updater import FeedUpdater
from components.lib.streams.read_context import ReadContext
from components.lib.streams.writer import AppendId, WriterSettings
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import RETENTION_BYTES, RETENTION_RECORDS, TopicRetention
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.models import Segment
from registry.position import Position
from tests.streams import Process, stored_files
from tests.waiting import eventually

TOPIC, PARTITIONS, STEPS = "model", 3, 80
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
SETTINGS = WriterSettings(block_bytes=200, preallocated_names=1)


class World:
    """`pending` are appends without a result, because their process died: they may be written or not, until they are
    repeated under their append ids.
    """

    def __init__(self, context: ComponentContext, seed: int) -> None:
        self.context = context
        self.store = context.store
        self.random = random.Random(seed)
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.pending: dict[int, list[bytes]] = {}
        self.read_context = ReadContext(context)
        self.merger = Merger(
            self.store, self.read_context.objects, self.read_context.cache, context.clock,
            join(canonical(context.lake.warehouse), "merged"), MergePolicy(min_segments=2, min_age_ms=0),
        )  # fmt: skip
        self.retention = TopicRetention(self.store, context.clock, 2)
        self._process: Process | None = None

    async def step(self) -> None:
        ways = (
            *[self.append] * 6, *[self.read] * 4, *[self.merge] * 2, self.interrupt_merge, *[self.trim] * 2,
            self.retain, self.restart, *[self.die] * 2, self.lose, self.clean,
        )  # fmt: skip
        await self.random.choice(ways)()

    # ---- writers ------------------------------------------------------------------------------------------

    async def append(self) -> None:
        """Appends to several partitions at once."""
        process = await self._alive()
        await asyncio.gather(*(self._append(process, partition) for partition in self._some()))

    async def die(self) -> None:
        """Kills the writer during appends. Its leases expire."""
        process = await self._alive()
        appends = [asyncio.create_task(self._append(process, partition)) for partition in self._some()]
        for _ in range(self.random.choice((0, 1, 5, 20, 100))):
            await asyncio.sleep(0)
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.random() * 0.02)
        self._process = None
        await process.kill()
        for task in appends:
            task.cancel()
        await asyncio.gather(*appends, return_exceptions=True)
        await self.store.deregister_agent(process.agent.agent_id)

    async def lose(self) -> None:
        """The writer loses its leases to another one without noticing."""
        process, partition = await self._alive(), self.random.randrange(PARTITIONS)
        await self._append(process, partition)
        await self.store.deregister_agent(process.agent.agent_id)
        self._process = None
        await self._append(await self._alive(), partition)
        with pytest.raises(AppendFailed):
            await process.writer.append(TOPIC, partition, [b"too late"])
        await process.__aexit__()

    async def restart(self) -> None:
        """Closes the writer; the next one acquires its leases."""
        process, self._process = self._process, None
        if process is not None:
            await process.__aexit__()

    async def settle(self) -> None:
        """Repeats pending appends."""
        for partition in list(self.pending):
            await self._append(await self._alive(), partition)

    async def _alive(self) -> Process:
        if self._process is None:
            process = Process(self.store, self.context.lake, settings=SETTINGS, clock=self.context.clock)
            self._process = await process.__aenter__()
        return self._process

    def _some(self) -> list[int]:
        return self.random.sample(range(PARTITIONS), self.random.randint(1, PARTITIONS))

    async def _append(self, process: Process, partition: int) -> None:
        """Appends what is pending, else something new. Retries if the cleaner has deleted the object."""
        first, count = len(self.written[partition]), self.random.choice((1, 1, 3, 30))
        new = [b"%d/%d" % (partition, first + number) for number in range(count)]
        values = self.pending.setdefault(partition, new)
        while True:
            try:
                appended = await process.writer.append(TOPIC, partition, values, append_id=AppendId("model", first))
            except AppendFailed as error:
                if "intent" not in str(error):
                    raise
            else:
                break
        assert appended.base_offset == first
        self.written[partition] += self.pending.pop(partition)

    # ---- readers ------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Reads a little at a random offset. The reader follows the registry, so it may have to wait for the latest
        records.
        """
        partition = self.random.randrange(PARTITIONS)
        sure, unsure = self.written[partition], self.pending.get(partition, [])
        bounds = await self.read_context.reader.bounds(TOPIC, partition)
        assert bounds.end in (len(sure), len(sure) + len(unsure))
        if bounds.start < bounds.end:
            offset = self.random.randrange(bounds.start, bounds.end)
            most = self.random.choice((1, 5, None))
            found = await self.read_context.reader.read(TOPIC, partition, offset, max_records=most, wait_s=30)
            values = [record.value for record in found]
            assert values
            assert values == [*sure, *unsure][offset : offset + len(values)]

    async def check(self, read_context: ReadContext) -> None:
        for partition, wanted in enumerate(self.written):
            bounds = await read_context.reader.bounds(TOPIC, partition)
            assert bounds.end == len(wanted)
            seen: list[bytes | None] = []
            offset = bounds.start
            while len(found := await read_context.reader.read(TOPIC, partition, offset)):
                assert [record.offset for record in found] == list(range(offset, found.next_offset))
                seen += [record.value for record in found]
                offset = found.next_offset
            assert seen == wanted[bounds.start :]

    # ---- maintenance --------------------------------------------------------------------------------------

    async def merge(self) -> None:
        await self.merger.merge({(TOPIC, partition): 0 for partition in range(PARTITIONS)})

    async def interrupt_merge(self) -> None:
        merging = asyncio.create_task(self.merge())
        await asyncio.sleep(self.random.random() * 0.02)
        merging.cancel()
        await asyncio.gather(merging, return_exceptions=True)

    async def trim(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        offset = self.random.randint(0, len(self.written[partition]) // 2)
        before = await self.read_context.reader.bounds(TOPIC, partition)
        await self.retention.delete_before(TOPIC, partition, offset)
        bounds = await self.read_context.reader.bounds(TOPIC, partition)
        assert before.start <= bounds.start <= max(before.start, offset)

    async def retain(self) -> None:
        """Retention by records or by bytes keeps the fewest segments that satisfy the bound."""
        await self.settle()
        records, size = self.random.choice([(self.random.randint(1, 100), None), (None, self.random.randint(1, 2000))])
        before = [await self._segments(partition) for partition in range(PARTITIONS)]
        bounds = {RETENTION_RECORDS: records, RETENTION_BYTES: size}
        given = {name: value for name, value in bounds.items() if value is not None}
        await self.store.update_topic_config(TOPIC, given)
        await self.retention.enforce()
        await self.store.update_topic_config(TOPIC, {})
        for partition, old in enumerate(before):
            kept: list[Segment] = []
            for segment in reversed(old):
                if size is not None and sum(row.size_bytes for row in kept) >= size:
                    break
                if records is not None and sum(row.record_count for row in kept) >= records:
                    break
                kept.insert(0, segment)
            assert await self._segments(partition) == kept

    async def clean(self) -> None:
        """Cleans intents of live writers too: they must notice."""
        await clean_intents(self.store, self.read_context.objects, 0, "cleaner")

    async def _segments(self, partition: int) -> list[Segment]:
        return [segment async for segment in self.store.stream_segments(TOPIC, partition)]

    async def live(self) -> set[str]:
        return {segment.uri for partition in range(PARTITIONS) for segment in await self._segments(partition)}


@pytest.fixture
async def real_store(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def storage(request: pytest.FixtureRequest) -> LakeSettings:
    found: LakeSettings = request.getfixturevalue("lake" if request.param == "disk" else "s3_lake")
    return found


async def test_the_log_is_what_was_acknowledged(url: str, real_store: MetadataStore, storage: LakeSettings) -> None:
    print(f"SEED={SEED}")  # noqa: T201  (shown when it fails)
    clock = SystemLoopClock()
    context = ComponentContext(real_store, clock, SecretStr(url), storage)
    await real_store.create_topic(TOPIC, PARTITIONS)
    world = World(context, SEED)
    live_source = open_live_source(url, PostgresSourceSettings(), TailSettings(), clock)
    async with FeedUpdater(live_source, world.read_context.change_feed, clock):
        for _ in range(STEPS):
            await world.step()
        await world.settle()
        await world.restart()
        await world.check(world.read_context)

    async def cleaned() -> bool:
        """A server may still execute the last statement of a killed process: intents that it locks are skipped."""
        await world.clean()
        return not await real_store.list_stale_intents(0)

    await eventually(cleaned, "no intents left")
    cold = ReadContext(context)
    cold.change_feed.resume(Position(1))
    await world.check(cold)
    assert await stored_files(storage) == await world.live()
    await cold.close()
    await world.read_context.close()
