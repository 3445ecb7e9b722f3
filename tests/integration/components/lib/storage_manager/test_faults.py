"""An insert that fails at any of its calls, in any way, leaves no file and no row; or all of them.

The points are counted on a run without a fault, so that a step that is added later is tried as well.
"""

from __future__ import annotations

import asyncio
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.transforms import IdentityTransform

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.testing import ManualClock
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager import StorageManager, StorageSettings
from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.models import LakeTable
from tests.contracts.contents import assert_counted
from tests.doubles.clock import ManualClock as StoreClock
from tests.doubles.fault_points import LOST_ERRORS, Fault, FaultPoints, FaultyObjects, FaultyRegistry
from tests.fixtures.stores import OpenStore
from tests.lake import create_table, files_below, read_rows, table_schema
from tests.waiting import eventually

ROWS = [{"id": number, "name": f"n{number % 3}", "day": date(2024, 5, 1)} for number in range(9)]
PARTITIONED = table_schema(partition=[(2, IdentityTransform(), "name")])


class HastyClock(SystemLoopClock):
    """Waits between attempts are short; work that runs every few minutes does not run in a test."""

    async def sleep(self, seconds: float) -> None:
        if seconds > 60:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


class Trial:
    """One insert into its own table, with one fault."""

    def __init__(
        self,
        store: MetadataStore,
        lake: LakeSettings,
        table: LakeTable,
        points: FaultPoints,
        insert_id: str | None = None,
    ) -> None:
        self.store = store
        self.insert_id = insert_id
        self.table = table
        self.points = points
        self.objects = Objects(lake)
        context = ComponentContext(
            store=FaultyRegistry(store, points), clock=HastyClock(), registry_url=SecretStr(""), lake=lake
        )
        self.manager = StorageManager(
            context, StorageSettings(parallel_files=2), objects=FaultyObjects(self.objects, points)
        )
        self.error: BaseException | None = None

    async def run(self, *, sync: bool) -> None:
        try:
            async with self.manager as manager:
                self.points.victim = asyncio.create_task(self._insert(manager, sync=sync))
                await asyncio.wait([self.points.victim])
                self.points.victim.result()
        except (*LOST_ERRORS, Conflict, asyncio.CancelledError) as error:
            self.error = error

    async def _insert(self, manager: StorageManager, *, sync: bool) -> None:
        inserted = await manager.insert(self.table.id, ROWS, sync=sync, insert_id=self.insert_id)
        await inserted.registered

    async def check(self, found: set[str]) -> str:
        """``found`` are the existing objects."""
        live = {file.file_path async for file in self.store.stream_files(self.table.id)}
        intended = {intent.path for intent in await self.store.list_stale_intents(0)}
        assert live <= found, "a registered file is missing"
        assert found - live <= intended, "a file that is neither registered nor intended"
        assert not live & intended, "a registered file that the cleaner would look at"
        rows = await read_rows(self.store, self.table, self.objects)
        assert rows == [] or sorted(row["id"] for row in rows) == list(range(9)), "half an insert"
        if self.error is None:
            assert rows, "an acknowledged insert is missing"
        await clean_intents(self.store, self.objects, 0, "cleaner")
        assert await self.store.list_stale_intents(0) == []
        await assert_counted(self.store, self.table.id)
        left = found - live
        return "in the table" if rows else ("for the cleaner" if left else "gone")


async def counted(store: MetadataStore, lake: LakeSettings, warehouse: str, *, sync: bool) -> list[str]:
    points = FaultPoints()
    table = await create_table(store, warehouse, "counted", PARTITIONED)
    trial = Trial(store, lake, table, points)
    await trial.run(sync=sync)
    assert trial.error is None
    return points.names


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_every_fault_at_every_point(
    store: MetadataStore, lake: LakeSettings, warehouse: Path, sync: bool
) -> None:
    names = await counted(store, lake, str(warehouse), sync=sync)
    assert {"record_intents", "write", "register_files", "get_table_metadata"} <= set(names)
    outcomes: dict[str, int] = {}
    for at, name in enumerate(names):
        for fault in Fault:
            if fault is Fault.REFUSED and name not in ("write", "delete_many"):
                continue
            place = warehouse / f"{at}-{fault.name}"
            table = await create_table(store, place, f"t-{at}-{fault.name}", PARTITIONED)
            trial = Trial(store, lake, table, FaultPoints(at, fault))
            await trial.run(sync=sync)
            outcome = await trial.check(files_below(place))
            assert files_below(place) == {file.file_path async for file in store.stream_files(table.id)}
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert min(outcomes["in the table"], outcomes["gone"], outcomes["for the cleaner"]) > 0


async def test_after_every_fault_an_insert_with_an_id_can_be_repeated(
    store: MetadataStore, lake: LakeSettings, warehouse: Path
) -> None:
    counted_points = FaultPoints()
    table = await create_table(store, warehouse, "counted", PARTITIONED)
    await Trial(store, lake, table, counted_points, "load").run(sync=True)
    names = counted_points.names
    assert {"get_insert", "register_files"} <= set(names)
    repeated = 0
    for at, name in enumerate(names):
        for fault in Fault:
            if fault is Fault.REFUSED and name not in ("write", "delete_many"):
                continue
            place = warehouse / f"{at}-{fault.name}"
            table = await create_table(store, place, f"t-{at}-{fault.name}", PARTITIONED)
            first = Trial(store, lake, table, FaultPoints(at, fault), "load")
            await first.run(sync=True)
            was_there = await first.check(files_below(place)) == "in the table"
            second = Trial(store, lake, table, FaultPoints(), "load")
            await second.run(sync=True)
            assert second.error is None
            assert await second.check(files_below(place)) == "in the table"
            recorded = await store.get_insert(table.id, "load")
            assert recorded is not None
            assert recorded.row_count == len(ROWS)
            repeated += was_there
    assert repeated > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", [Fault.CALL_LOST, Fault.ANSWER_LOST, Fault.CANCELLED])
async def test_a_second_fault_while_the_first_is_cleaned_up(
    store: MetadataStore, lake: LakeSettings, warehouse: Path, first: Fault
) -> None:
    names = await counted(store, lake, str(warehouse), sync=True)
    for at in range(names.index("record_intents"), len(names)):
        for second in (Fault.CALL_LOST, Fault.ANSWER_LOST, Fault.CANCELLED, Fault.DOWN):
            for later in range(1, 6):
                place = warehouse / f"{at}-{second.name}-{later}"
                table = await create_table(store, place, place.name, PARTITIONED)
                trial = Trial(store, lake, table, TwoFaults(at, first, at + later, second))
                await trial.run(sync=True)
                await trial.check(files_below(place))


class TwoFaults(FaultPoints):
    def __init__(self, at: int, fault: Fault, later: int, second: Fault) -> None:
        super().__init__(at, fault)
        self._later = (later, second)

    async def reach(self, *args: Any) -> Any:
        if len(self.names) > self._at:
            self._at, self._fault = self._later
        return await super().reach(*args)


@pytest.mark.slow
async def test_cancelled_after_any_number_of_steps(store: MetadataStore, lake: LakeSettings, warehouse: Path) -> None:
    outcomes = set()
    for steps in [*range(30), *(30 + 2**power for power in range(14))]:
        place = warehouse / str(steps)
        table = await create_table(store, place, f"t{steps}", PARTITIONED)
        points = FaultPoints()
        trial = Trial(store, lake, table, points)
        running = asyncio.create_task(trial.run(sync=True))
        for _ in range(steps):
            await asyncio.sleep(0)
        if points.victim is not None:
            points.victim.cancel()
        await running
        outcomes.add(await trial.check(files_below(place)))
    assert outcomes >= {"gone"}


class Overtaken(FaultPoints):
    """The cleaner runs between upload and registration: the writer has slept for too long."""

    def __init__(self, store: MetadataStore, objects: Objects) -> None:
        super().__init__()
        self._cleaned = (store, objects)

    async def reach(self, name: str, *rest: Any) -> Any:
        if name == "register_files":
            cleaned = await clean_intents(*self._cleaned, 0, "cleaner")
            assert len(cleaned.deleted) == 3
        return await super().reach(name, *rest)


async def test_a_claimed_upload_is_never_registered(store: MetadataStore, lake: LakeSettings, warehouse: Path) -> None:
    table = await create_table(store, warehouse, schema=PARTITIONED)
    trial = Trial(store, lake, table, Overtaken(store, Objects(lake)))
    await trial.run(sync=False)
    assert isinstance(trial.error, Conflict)
    assert await trial.check(files_below(warehouse)) == "gone"


async def test_intents_are_renewed_while_the_writer_runs(
    store: MetadataStore, lake: LakeSettings, warehouse: Path, clock: StoreClock
) -> None:
    table = await create_table(store, warehouse)
    time = ManualClock()
    context = ComponentContext(store=store, clock=time, registry_url=SecretStr(""), lake=lake)
    async with StorageManager(context, StorageSettings(renew_every_s=100)) as manager:
        for _ in range(4):
            await manager.insert(table.id, ROWS)
        await manager.flush()
        assert await store.list_stale_intents(0) != []  # names ahead
        clock.advance(100_000)
        assert await store.list_stale_intents(100_000) != []
        await time.advance(100)

        async def none_is_stale() -> bool:
            return await store.list_stale_intents(100_000) == []

        await eventually(none_is_stale, "a renewal")


@pytest.mark.parametrize("fault", [Fault.CALL_LOST, Fault.ANSWER_LOST, Fault.CANCELLED, Fault.REFUSED])
async def test_uploads_that_fail_on_s3(sqlite_url: str, opened: OpenStore, s3_lake: LakeSettings, fault: Fault) -> None:
    store = await opened(sqlite_url)
    names = await counted(store, s3_lake, s3_lake.warehouse, sync=True)
    for at in (place for place, name in enumerate(names) if name in ("write", "register_files")):
        if fault is Fault.REFUSED and names[at] != "write":
            continue
        table = await create_table(store, s3_lake.warehouse, f"t{at}", PARTITIONED)
        before = {intent.path for intent in await store.list_stale_intents(0)}
        trial = Trial(store, s3_lake, table, FaultPoints(at, fault))
        await trial.run(sync=True)
        paths = {intent.path for intent in await store.list_stale_intents(0)} - before
        paths |= {file.file_path async for file in store.stream_files(table.id)}
        await trial.check({path for path in paths if await trial.objects.exists(path)})
