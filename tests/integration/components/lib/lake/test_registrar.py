"""Registrars on real registries: many callers, refused registrations, lost responses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from astha.backoff import Backoff
from astha.clock import SystemLoopClock
from components.lib.lake.registration.registrar import Registrar, Result, RetryPolicy
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, OffsetsMoved, RegistryError, Unavailable
from registry.forwarding import ForwardingStore
from registry.inputs import Advance, Registration
from registry.models import LakeTable, TableFile
from tests.contracts.contents import assert_counted
from tests.integration.components.lib.lake.losing_store import LosingStore
from tests.samples import TABLE, file

CALLERS, TURNS = 10, 10


async def new_tables(store: MetadataStore, count: int = 3) -> list[LakeTable]:
    return [await store.create_table("db", f"t{number}", f"s3://lake/t{number}", TABLE) for number in range(count)]


async def live(store: MetadataStore, tables: list[LakeTable]) -> dict[str, TableFile]:
    return {file.file_path: file for table in tables async for file in store.stream_files(table.id)}


async def test_many_callers_get_their_own_results(store: MetadataStore, other: MetadataStore) -> None:
    tables = await new_tables(store)
    clock = SystemLoopClock()
    good: dict[str, Result] = {}
    bad: list[tuple[type[RegistryError], Result]] = []

    async def caller(number: int, registrar: Registrar) -> None:
        chance, owner = random.Random(number), f"w-{number}"
        for turn in range(TURNS):
            table = chance.choice(tables)
            names = [f"s3://lake/{number}/{turn}/{part}" for part in range(chance.randint(1, 3))]
            await store.record_intents(names, purpose="insert", owner=owner)
            drafts = [file(name, rows=chance.randint(0, 99), partition=f"p={chance.randint(0, 4)}") for name in names]
            registration = Registration(table_id=table.id, files=drafts, intents_of=owner)
            result = await registrar.register(registration)
            good.update(dict.fromkeys(names, result))
            draft = file(f"s3://lake/bad/{number}/{turn}")
            wrong, error = chance.choice(
                [
                    (Registration(table_id=table.id, files=[draft], intents_of=owner), Conflict),
                    (Registration(table_id=999, files=[draft]), NotFound),
                    (Registration(table_id=table.id, files=[draft, draft]), Invalid),
                    (Registration(table_id=table.id, files=[file(draft.file_path, version=7)]), NotFound),
                    (Registration(table_id=table.id, files=[file(names[0])]), AlreadyExists),
                ]
            )
            bad.append((error, await registrar.register(wrong)))
            if turn % 3 == 0:
                await result

    async with (
        Registrar(store, clock, max_waiting_files=20) as first,
        Registrar(other, clock, max_waiting_files=20) as second,
    ):
        await asyncio.gather(*(caller(number, (first, second)[number % 2]) for number in range(CALLERS)))
    registered = await live(store, tables)
    assert registered.keys() == good.keys()
    for path, result in good.items():
        assert registered[path] in await result
    for error, result in bad:
        with pytest.raises(error):
            await result
    assert await store.list_stale_intents(0) == []
    for table in tables:
        await assert_counted(store, table.id)


@pytest.mark.parametrize("seed", range(3))
async def test_lost_calls_and_responses_register_each_file_once(store: MetadataStore, seed: int) -> None:
    tables = await new_tables(store)
    chance = random.Random(seed)
    losing = LosingStore(store, seed)
    results: dict[str, Result] = {}
    retries = RetryPolicy(backoff=Backoff(0.001, 0.002), attempts=30)
    async with Registrar(losing, SystemLoopClock(), retries=retries) as registrar:
        for number in range(60):
            path, owner = f"s3://lake/{number}", chance.choice(["w-1", "w-2", None])
            await store.record_intents([path], purpose="insert", owner=owner or "another")
            table = chance.choice(tables)
            results[path] = await registrar.register(
                Registration(table_id=table.id, files=[file(path)], intents_of=owner)
            )
            if chance.random() < 0.3:
                await results[path]
    registered = await live(store, tables)
    assert losing.lost
    assert registered.keys() == results.keys()
    for path, result in results.items():
        assert await result == [registered[path]]
    for table in tables:
        await assert_counted(store, table.id)


async def test_only_files_that_the_cleaner_has_claimed_are_refused(store: MetadataStore) -> None:
    (table,) = await new_tables(store, 1)
    paths = [f"s3://lake/{number}" for number in range(20)]
    await store.record_intents(paths, purpose="insert", owner="writer")
    async with Registrar(store, SystemLoopClock()) as registrar:
        results = [
            await registrar.register(Registration(table_id=table.id, files=[file(path)], intents_of="writer"))
            for path in paths
        ]
        taken = {intent.path for intent in await store.claim_stale_intents(0, owner="cleaner", limit=7)}
    outcomes = dict(zip(paths, await asyncio.gather(*results, return_exceptions=True), strict=True))
    refused = {path for path, outcome in outcomes.items() if isinstance(outcome, Conflict)}
    assert refused == taken
    assert (await live(store, [table])).keys() == set(paths) - taken


async def test_cancelled_callers_neither_lose_nor_duplicate_files(store: MetadataStore) -> None:
    (table,) = await new_tables(store, 1)
    chance = random.Random(1)
    accepted: set[str] = set()

    async def caller(registrar: Registrar, number: int) -> None:
        for turn in range(20):
            path = f"s3://lake/{number}/{turn}"
            result = await registrar.register(Registration(table_id=table.id, files=[file(path)]))
            accepted.add(path)
            await result

    async with Registrar(store, SystemLoopClock(), max_waiting_files=3) as registrar:
        callers = [asyncio.create_task(caller(registrar, number)) for number in range(10)]
        for task in chance.sample(callers, 8):
            await registrar.register(Registration(table_id=table.id, files=[]), sync=True)
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    assert (await live(store, [table])).keys() == accepted
    await assert_counted(store, table.id)


async def test_offsets_that_advanced_with_a_lost_response(store: MetadataStore) -> None:
    """A call without a response has registered it: the retry is refused, and recognized as a success."""
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.create_topic("orders", 1)
    await store.ensure_consumer_group("g")

    told: set[int] = set()

    class Losing(ForwardingStore):
        async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
            answer = await store.register_files(registrations)
            if len(registrations[0].files) not in told:
                told.add(len(registrations[0].files))
                raise Unavailable("the answer was lost")
            return answer

    async with Registrar(Losing(store), SystemLoopClock()) as registrar:
        with_files = Registration(table_id=table.id, files=[file("1")], advances=[Advance("g", "orders", 0, None, 5)])
        result = await registrar.register(with_files, sync=True)
        assert [row.file_path for row in await result] == ["1"]
        without = Registration(table_id=table.id, files=[], advances=[Advance("g", "orders", 0, 5, 6)])
        with pytest.raises(OffsetsMoved):  # the error does not name the writer: the caller reads the group's offsets
            await registrar.register(without, sync=True)
    assert len(await store.list_files(table.id)) == 1
    assert [row.committed_offset for row in await store.get_consumer_offsets("g")] == [6]
