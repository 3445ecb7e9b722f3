"""Statistics always equal a recount of the files, for every reader, at any time, during concurrent writes."""

from __future__ import annotations

import asyncio
import random

import pytest

from astha.clock import SystemLoopClock
from components.lib.lake.registration.registrar import Registrar
from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.inputs import FileDraft, Registration
from tests.contracts.contents import assert_counted
from tests.samples import TABLE, file

TURNS = 15
PARTITIONS = ("", "p=1", "p=2", "p=__HIVE_DEFAULT_PARTITION__")


class Writers:
    """Changes the files of a few tables at random."""

    def __init__(self, store: MetadataStore, tables: list[int], seed: str) -> None:
        self.store = store
        self.tables = tables
        self.chance = random.Random(seed)
        self.name = seed
        self.done = 0

    def draft(self, path: str) -> FileDraft:
        rows, size = self.chance.randint(0, 1_000), self.chance.choice([0, 1, 10**6, 2**40])
        return file(f"s3://lake/{self.name}/{path}", rows=rows, size=size, partition=self.chance.choice(PARTITIONS))

    async def insert(self, registrar: Registrar) -> None:
        for turn in range(TURNS * 2):
            drafts = [self.draft(f"{turn}/{part}") for part in range(self.chance.randint(1, 4))]
            registration = Registration(table_id=self.chance.choice(self.tables), files=drafts)
            await registrar.register(registration, sync=self.chance.random() < 0.5)
            self.done += 1

    async def change(self) -> None:
        """Removes and swaps files that others may remove and swap at the same time: then nothing happens."""
        for turn in range(TURNS):
            table = self.chance.choice(self.tables)
            files = await self.store.list_files(table)
            chosen = self.chance.sample(files, min(len(files), self.chance.randint(1, 5)))
            try:
                if self.chance.random() < 0.5:
                    await self.store.remove_files(table, chosen, reason="delete")
                else:
                    new = [self.draft(f"{turn}/swap/{part}") for part in range(self.chance.randint(0, 2))]
                    await self.store.swap_files(table, chosen, new, operation_id=f"{self.name}-{turn}")
                self.done += 1
            except Conflict:
                continue


@pytest.mark.parametrize("seed", range(2))
async def test_statistics_equal_a_recount_at_every_moment(
    store: MetadataStore, other: MetadataStore, seed: int
) -> None:
    created = [await store.create_table("db", f"t{number}", f"s3://lake/t{number}", TABLE) for number in range(2)]
    tables = [table.id for table in created]
    looks = 0

    async def look(until: asyncio.Event) -> None:
        nonlocal looks
        while not until.is_set():
            for table in tables:
                await assert_counted(store, table)
            looks += 1

    ended = asyncio.Event()
    looking = asyncio.create_task(look(ended))
    writers = [Writers((store, other)[number % 2], tables, f"{seed}-{number}") for number in range(6)]
    clock = SystemLoopClock()
    async with Registrar(store, clock, max_waiting_files=8) as first, Registrar(other, clock) as second:
        await asyncio.gather(
            *(writer.insert((first, second)[place % 2]) for place, writer in enumerate(writers[:3])),
            *(writer.change() for writer in writers[3:]),
        )
    ended.set()
    await looking
    assert looks
    assert all(writer.done for writer in writers)
    for table in created:
        before = await store.get_table_by_id(table.id)
        await assert_counted(store, table.id)
        assert await store.recount_statistics(table.id) == before  # writes only what is wrong
