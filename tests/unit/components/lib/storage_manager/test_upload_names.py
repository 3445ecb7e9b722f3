from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from components.lib.storage_manager.table_handles import TableHandle
from components.lib.storage_manager.upload_names import UploadNames
from registry.contract import Files
from registry.errors import Unavailable
from tests.doubles.clock import ManualClock


class Intents:
    def __init__(self) -> None:
        self.recorded: list[list[str]] = []
        self.completed: list[str] = []
        self.failing = False

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        assert (purpose, owner) == ("insert 7", "w")
        if self.failing:
            raise Unavailable("no")
        self.recorded.append(list(paths))

    async def complete_intents(self, paths: Sequence[str]) -> None:
        self.completed += paths

    @property
    def all(self) -> list[str]:
        return [path for paths in self.recorded for path in paths]


@dataclass
class Engine:
    extension: str = ".parquet"


@dataclass
class Table:
    id: int = 7
    location: str = "s3://lake/t"


TARGET = TableHandle(cast("Any", Table()), cast("Any", None), cast("Any", None), cast("Any", Engine()))


def names(store: Intents, ahead: int = 64) -> UploadNames:
    return UploadNames(cast("Files", store), ManualClock(), "w", ahead)


async def test_the_first_take_records_what_it_needs() -> None:
    store = Intents()
    taken = await names(store).take(TARGET, ["p=1", "p=2", "p=1"])
    assert len(set(taken)) == 3
    assert [name.split("/data/")[1].split("/")[0] for name in taken] == ["p-1", "p-2", "p-1"]
    assert sorted(store.all) == sorted(taken)


async def test_more_names_are_recorded_ahead_for_busy_partitions() -> None:
    store = Intents()
    some = names(store)
    taken = [name for _ in range(200) for name in await some.take(TARGET, [""])]
    assert len(set(taken)) == 200
    assert [len(call) for call in store.recorded] == [1, 2, 5, 17, 65, 65, 65]  # nothing else had a turn of the loop
    await some.give_back()
    assert sorted([*taken, *store.completed]) == sorted(store.all)


async def test_a_table_with_many_partitions_records_no_more_than_it_needs() -> None:
    store = Intents()
    some = names(store)
    for number in range(1_000):
        await some.take(TARGET, [f"p={number}"])
    assert len(store.all) == 1_000
    await some.give_back()
    assert store.completed == []


async def test_names_of_evicted_partitions_are_given_back() -> None:
    store = Intents()
    some = names(store)
    taken = [name for _ in range(2) for name in await some.take(TARGET, ["kept"])]
    for number in range(300):
        taken += await some.take(TARGET, [f"p={number}"])
    await some.give_back()
    assert sorted([*taken, *store.completed]) == sorted(store.all)


async def test_an_error_takes_no_name() -> None:
    store = Intents()
    some = names(store)
    for _ in range(2):
        await some.take(TARGET, [""])
    store.failing = True
    with pytest.raises(Unavailable):
        await some.take(TARGET, ["", ""])
    store.failing = False
    (name,) = await some.take(TARGET, [""])
    assert name in store.recorded[1]  # the one that was ahead is still there


async def test_names_are_refilled_before_they_run_out() -> None:
    store = Intents()
    some = names(store)
    taken = []
    for _ in range(300):
        before = len(store.recorded)
        taken += await some.take(TARGET, [""])
        if len(taken) > 25:
            assert len(store.recorded) == before, "a take that waited for the registry"
        await asyncio.sleep(0)
    assert len(set(taken)) == 300
    await some.give_back()
    assert sorted([*taken, *store.completed]) == sorted(store.all)


async def test_a_failed_refill_is_not_raised() -> None:
    store = Intents()
    some = names(store)
    taken = []
    for _ in range(21):
        taken += await some.take(TARGET, [""])
    store.failing = True
    await asyncio.sleep(0)
    for _ in range(4):
        taken += await some.take(TARGET, [""])
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await some.take(TARGET, [""])
    store.failing = False
    taken += await some.take(TARGET, [""])
    await some.give_back()
    assert set(store.all) <= {*taken, *store.completed}


async def test_recording_ahead_can_be_disabled() -> None:
    store = Intents()
    some = names(store, ahead=0)
    for _ in range(10):
        await some.take(TARGET, [""])
    assert [len(call) for call in store.recorded] == [1] * 10


async def test_unused_names_are_not_renewed_forever() -> None:
    """A writer renews all of its intents: those of unused names must be completed while it runs."""
    store = Intents()
    some = names(store)
    taken = [name for _ in range(2) for name in await some.take(TARGET, ["forgotten"])]
    for number in range(300):
        taken += await some.take(TARGET, [f"p={number}"])
    await some.drop_unused()
    assert len(store.completed) == 1
    assert sorted([*taken, *store.completed]) == sorted(store.all)
    store.failing = True
    with pytest.raises(Unavailable):
        await some.take(TARGET, ["p=0"])  # which may be recorded or not
    store.failing = False
    await some.drop_unused()
    assert len(store.completed) == 2
    await some.drop_unused()
    assert len(store.completed) == 2


async def test_unused_names_are_kept_until_the_registry_has_completed_their_intents() -> None:
    class Deaf(Intents):
        async def complete_intents(self, paths: Sequence[str]) -> None:
            if self.failing:
                raise Unavailable("no")
            await super().complete_intents(paths)

    store = Deaf()
    some = names(store)
    store.failing = True
    with pytest.raises(Unavailable):
        await some.take(TARGET, [""])
    with pytest.raises(Unavailable):
        await some.drop_unused()
    store.failing = False
    await some.drop_unused()
    assert len(store.completed) == 1
