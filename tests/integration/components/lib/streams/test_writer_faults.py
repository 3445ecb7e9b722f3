"""Appends with a fault at every call to registry or storage; and random appends with crashes and lost leases.

Every acknowledged record is stored once, in order, unchanged. Failed appends are not stored; appends with an unknown
outcome are stored at most once. Offsets have no gap, and every object has a segment or an intent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from astha.subscribers.context import LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects, StorageRefused
from components.lib.streams.agents import AgentSettings
from components.lib.streams.errors import AppendFailed, NotLeader, WriterClosed
from components.lib.streams.writer import Producer, WriterSettings
from registry.contract import MetadataStore
from registry.errors import RegistryError, Unavailable
from tests.doubles.clock import ManualClock
from tests.doubles.fault_points import Fault, FaultPoints, FaultyObjects, FaultyRegistry
from tests.streams import Process, assert_no_orphans, read_partition

T = TypeVar("T")

TOPICS = {"orders": 3}
NOT_WRITTEN = (AppendFailed, NotLeader, WriterClosed)


class AppendLog:
    """Appended values, each unique, and their results."""

    def __init__(self) -> None:
        self.numbers = 0
        self.answered: dict[bytes, tuple[int, int]] = {}
        self.order: dict[tuple[str, int], list[bytes]] = {}
        self.unknown: set[bytes] = set()
        self.failed: set[bytes] = set()

    def values(self, count: int) -> list[bytes]:
        self.numbers += count
        return [b"%06d" % number for number in range(self.numbers - count, self.numbers)]

    async def append(self, process: Process, client: str, partition: int, count: int) -> None:
        values = self.values(count)
        try:
            appended = await process.writer.append("orders", partition, values)
        except NOT_WRITTEN:
            self.failed.update(values)
        except (Exception, asyncio.CancelledError):
            self.unknown.update(values)
        else:
            self._answer(client, partition, values, appended.base_offset)

    async def produce(self, producer: Producer, client: str, partition: int, count: int) -> None:
        values = self.values(count)
        try:
            appended = await producer.append("orders", partition, values, timeout_s=2)
        except (Exception, asyncio.CancelledError):
            self.unknown.update(values)
        else:
            self._answer(client, partition, values, appended.base_offset)

    def _answer(self, client: str, partition: int, values: list[bytes], base: int) -> None:
        for place, value in enumerate(values):
            self.answered[value] = (partition, base + place)
        self.order.setdefault((client, partition), []).extend(values)

    async def check(self, store: MetadataStore, objects: Objects, warehouse: Path) -> None:
        seen: dict[bytes, tuple[int, int]] = {}
        for partition in range(TOPICS["orders"]):
            for record in await read_partition(store, objects, "orders", partition):
                assert record.value is not None
                assert record.value not in seen, f"{record.value!r} is there twice"
                seen[record.value] = (partition, record.offset)
        lost = {value: place for value, place in self.answered.items() if seen.get(value) != place}
        assert not lost, f"acknowledged, but not where it should be: {lost}"
        assert not self.failed & set(seen), "said to have failed, but written"
        assert set(seen) <= set(self.answered) | self.unknown, "never appended"
        for (_, partition), values in self.order.items():
            offsets = [seen[value] for value in values]
            assert offsets == sorted(offsets), f"out of order in partition {partition}"
        await assert_no_orphans(store, warehouse, TOPICS)


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 3)


async def _one_fault(
    store: MetadataStore, lake: LakeSettings, clock: ManualClock, append_log: AppendLog, points: FaultPoints
) -> None:
    """Two rounds of appends with the fault, then another process continues."""
    process = Process(FaultyRegistry(store, points), lake, objects=FaultyObjects(Objects(lake), points))
    try:
        async with process:
            for turn in range(2):
                appends = [append_log.append(process, f"c{n}", n, 2) for n in range(2)]
                work = asyncio.ensure_future(asyncio.gather(*appends))
                points.victim = work  # type: ignore[assignment]
                await asyncio.gather(work, return_exceptions=True)
                if turn == 0 and process.agent.leases:
                    await process.agent.renew()
    except (RegistryError, StorageRefused):
        pass
    clock.advance(30_000)
    async with Process(store, lake) as after:
        for partition in range(3):
            await append_log.append(after, "after", partition, 1)


async def test_every_fault_at_every_point(
    store: MetadataStore, lake: LakeSettings, warehouse: Path, clock: ManualClock
) -> None:
    append_log = AppendLog()
    counted = FaultPoints()
    await _one_fault(store, lake, clock, append_log, counted)
    assert not append_log.failed
    assert not append_log.unknown
    names = counted.names
    assert {"record_intents", "write", "add_segments", "acquire_partition_leases", "get_partitions"} <= set(names)
    for at, name in enumerate(names):
        for fault in Fault:
            if fault is Fault.REFUSED and name not in ("write", "delete_many"):
                continue
            if fault is Fault.CANCELLED_AFTER:  # an append continues without its caller: the same as CANCELLED
                continue
            await _one_fault(store, lake, clock, append_log, FaultPoints(at, fault))
    await append_log.check(store, Objects(lake), warehouse)
    assert append_log.failed
    assert append_log.unknown
    clock.advance(30_000)
    await clean_intents(store, Objects(lake), 5_000, "cleaner")
    assert await store.list_stale_intents(0) == []
    await append_log.check(store, Objects(lake), warehouse)


class Chaos(FaultPoints):
    """At random calls: the call or its response is lost, it takes long, or it is executed long after its caller was
    cancelled. A `dead` process makes no further calls.
    """

    def __init__(self, chance: random.Random, rate: float) -> None:
        super().__init__()
        self._chance = chance
        self._rate = rate
        self.dead = False
        self.late: set[asyncio.Task[Any]] = set()

    async def reach(self, name: str, call: Callable[[], Awaitable[T]], lost: Callable[[str], Exception]) -> T:
        if self.dead:
            await asyncio.Event().wait()
        dice = self._chance.random()
        await self._pass()
        if dice < self._rate:
            raise lost(f"{name}: lost")
        if dice < 2 * self._rate:
            await call()
            raise lost(f"{name}: its answer was lost")
        if dice < 3 * self._rate and lost is Unavailable:

            async def later() -> None:
                for _ in range(20):
                    await self._pass()
                await call()

            task = asyncio.create_task(later())
            self.late.add(task)
            raise lost(f"{name}: not answered in time")
        return await call()

    async def _pass(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)


async def _life(
    store: MetadataStore, lake: LakeSettings, chance: random.Random, append_log: AppendLog, name: str, late: set[Any]
) -> None:
    """One process with clients that append, until it is closed or killed."""
    points = Chaos(chance, 0.04)
    points.late = late
    settings = WriterSettings(max_object_segments=2, parallel_uploads=3, registration_timeout_s=1.0)
    process = Process(
        FaultyRegistry(store, points), lake, settings=settings, agent=AgentSettings(lease_s=5.0),
        objects=FaultyObjects(Objects(lake), points), agent_id=name,
    )  # fmt: skip
    try:
        await process.__aenter__()
    except RegistryError:
        return
    producer = Producer(process.writer, process.clock, producer_id=f"p-{name}")

    async def client(number: int) -> None:
        for _ in range(chance.randrange(2, 7)):
            partition = chance.randrange(3)
            if number % 2:
                await append_log.append(process, f"{name}-{number}", partition, chance.randrange(1, 4))
            else:
                await append_log.produce(producer, f"{name}-{number}", partition, chance.randrange(1, 4))

    work = asyncio.ensure_future(asyncio.gather(*(client(number) for number in range(4))))
    if chance.random() < 0.5:
        for _ in range(chance.randrange(400)):
            await asyncio.sleep(0)
        points.dead = True
        await process.kill()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    else:
        await work
        await process.__aexit__()


@pytest.mark.parametrize("seed", range(3))
async def test_chaos(store: MetadataStore, lake: LakeSettings, warehouse: Path, clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    append_log = AppendLog()
    late: set[Any] = set()
    for generation in range(4):
        clock.advance(5_000)  # leases of dead and slow processes expire
        await asyncio.gather(*(_life(store, lake, chance, append_log, f"{generation}-{n}", late) for n in range(2)))
    await asyncio.gather(*late, return_exceptions=True)
    await append_log.check(store, Objects(lake), warehouse)
    clock.advance(30_000)
    await clean_intents(store, Objects(lake), 5_000, "cleaner")
    await append_log.check(store, Objects(lake), warehouse)
    assert append_log.answered


@pytest.mark.slow
async def test_every_fault_on_s3(store: MetadataStore, s3_lake: LakeSettings, clock: ManualClock) -> None:
    append_log = AppendLog()
    counted = FaultPoints()
    await _one_fault(store, s3_lake, clock, append_log, counted)
    for at in (place for place, name in enumerate(counted.names) if name in ("write", "add_segments")):
        for fault in (Fault.CALL_LOST, Fault.ANSWER_LOST, Fault.CANCELLED):
            await _one_fault(store, s3_lake, clock, append_log, FaultPoints(at, fault))
    for partition in range(3):
        records = await read_partition(store, Objects(s3_lake), "orders", partition)
        values = [record.value for record in records]
        assert len(values) == len(set(values))
        assert {value for value, place in append_log.answered.items() if place[0] == partition} <= set(values)
        assert not append_log.failed & set(values)
