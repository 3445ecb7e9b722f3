"""A reader through Iceberg, during compactions, sees committed states only, in their order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext
from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.errors import Conflict
from tests.doubles.merging import LocalExecutor
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.compactor.harness import Bench
from tests.lake import iceberg_tables
from tests.waiting import eventually

COMMITS, INSERTED = 30, 2  # files at once
ROUNDS, READS = 3, 10


class Reader:
    """Counts repeatedly. Every count must be one that the writer has committed, and none older than the last."""

    def __init__(self, url: str, bench: Bench, history: list[frozenset[int]]) -> None:
        self._tables = iceberg_tables(url, bench.lake)
        self._bench = bench
        self._history = history
        self.place = 0
        self.reads = 0

    async def run(self) -> None:
        while True:
            await self.look()

    async def look(self) -> None:
        found = await asyncio.to_thread(self._read)
        self.reads += 1
        places = [place for place, ids in enumerate(self._history) if ids == found and place >= self.place]
        assert places, f"after {self.reads} reads: {len(found)} rows were never committed, or were before"
        self.place = places[0]

    def _read(self) -> frozenset[int]:
        table = self._tables.load(self._bench.table)
        if table is None:
            return frozenset()
        ids: list[int] = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        assert len(ids) == len(set(ids)), "a row is there twice"
        return frozenset(ids)

    def close(self) -> None:
        self._tables.close()


@pytest.fixture
async def lasting(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(url)
    yield store
    await store.close()


async def write(bench: Bench, history: list[frozenset[int]], chance: random.Random) -> None:
    """The only writer, so that the order of commits is known. A count enters the history before it is committed."""
    for _ in range(COMMITS):
        now = history[-1]
        if chance.random() < 0.75:
            drafts = bench.write(INSERTED)
            history.append(now | frozenset(bench.read(drafts)))
            await bench.store.add_files(bench.table.id, drafts)
            continue
        live = await bench.store.list_files(bench.table.id)
        if not live:
            continue
        gone = chance.choice(live)
        history.append(now - frozenset(bench.read([gone])))
        try:
            await bench.store.remove_files(bench.table.id, [gone], reason="test")
        except Conflict:  # it was compacted meanwhile
            history.pop()


async def test_a_reader_sees_committed_sets_only(
    url: str, lasting: MetadataStore, run_daemon: RunDaemon, warehouse: Path
) -> None:
    bench = Bench(lasting, warehouse)
    await bench.create()
    around = ComponentContext(lasting, SystemLoopClock(), SecretStr(url), bench.lake)
    chosen = CompactorSettings.model_validate(
        {"heartbeat_s": 0.1, "check_every_s": 0.2, "defaults": {"compaction.min-inputs": 3}}
    )
    running = await run_daemon(
        url,
        {
            "compactor": Compactor(chosen, around, lambda: LocalExecutor(merge)),
            "updater": IcebergUpdater(UpdaterSettings(), around),
        },
    )
    await running.live()
    history = [frozenset[int]()]
    reader = Reader(url, bench, history)
    reading = asyncio.create_task(reader.run())
    chance = random.Random(7)

    async def done() -> int:
        return len(await lasting.list_compactions(statuses=["done"]))

    async def write_and_be_compacted() -> None:
        for _ in range(ROUNDS):
            before = await done()
            await write(bench, history, chance)

            async def compacted(before: int = before) -> bool:
                return await done() > before  # continuous removals can prevent a compaction from ending

            await eventually(compacted, "a compaction of what was written", 120)
        await eventually(lambda: reader.reads >= READS, "a reader meanwhile")

    writing = asyncio.create_task(write_and_be_compacted())
    await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    if not reading.cancelled():
        reading.result()
    await writing

    async def quiet() -> bool:
        return not await lasting.list_compactions(statuses=["waiting", "running"])

    await eventually(quiet, "nothing to compact")

    async def caught_up() -> bool:
        await reader.look()
        return reader.place == len(history) - 1

    await eventually(caught_up, "all that was committed")
    assert frozenset(await bench.ids()) == history[-1]
    await running.stop()
    await bench.require_tidy()
    reader.close()
