from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from components.lib.lake.storage.objects import Objects
from components.snapshotter.cli_context import call
from components.snapshotter.rollback import CantRollBack, Rollback, RollbackPlan
from registry.errors import Conflict
from registry.models import LakeTable, TableFile
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_expiration import HOUR, maintenance_of, there
from tests.parquet_files import PLAIN, row, write_files


def rollback_of(lake: Lake) -> Rollback:
    return Rollback(lake.store, lake.tables, call, Objects(lake.settings))


async def files_of(lake: Lake, table: LakeTable) -> dict[str, TableFile]:
    return {file.file_path: file async for file in lake.store.stream_files(table.id)}


async def roll_back(lake: Lake, table: LakeTable, name: str) -> RollbackPlan:
    before = await files_of(lake, table)
    plan = await rollback_of(lake).roll_back(table, name)
    await lake.tell_files(table, before)
    await lake.update()
    return plan


async def test_rolls_back_and_forth(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1, 2)
    old = await lake.snapshot(table, "old")
    await lake.compact(table, first, 1, 2)
    await lake.insert(table, 3)
    new = await lake.snapshot(table, "new")
    statistics = await lake.store.get_statistics(table.id)
    plan = await roll_back(lake, table, "old")
    assert (len(plan.removed), len(plan.restored), plan.rows) == (2, 1, -1)
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)
    (back,) = (await files_of(lake, table)).values()
    assert (back.operation, back.column_stats, back.checksum) == (
        "rollback", first[0].column_stats, first[0].checksum,
    )  # fmt: skip
    assert (await lake.store.recount_statistics(table.id)).row_count == 2
    await roll_back(lake, table, str(new.snapshot_id))
    assert lake.ids(table) == [1, 2, 3]
    await lake.require_agreement(table)
    again = await lake.store.get_statistics(table.id)
    assert [(part.row_count, part.file_count) for part in again] == [
        (part.row_count, part.file_count) for part in statistics
    ]
    assert lake.ids(table, old.snapshot_id) == [1, 2]


async def test_rollbacks_that_only_remove_only_restore_or_change_nothing(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    await lake.snapshot(table, "one")
    more = await lake.insert(table, 2)
    await lake.snapshot(table, "two")
    await roll_back(lake, table, "one")
    assert lake.ids(table) == [1]
    await roll_back(lake, table, "two")
    assert lake.ids(table) == [1, 2]
    plan = await roll_back(lake, table, "two")
    assert (plan.removed, plan.restored) == ([], [])
    now = await files_of(lake, table)
    await lake.remove(table, [now[file.file_path] for file in (*first, *more)])
    await lake.update()
    assert lake.ids(table) == []
    await roll_back(lake, table, "two")
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)


async def test_refusals_name_the_reason(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    tagged = await lake.snapshot(table, "v1")
    await lake.compact(table, first, 1)
    await lake.update()
    rollback = rollback_of(lake)
    with pytest.raises(CantRollBack, match="has no snapshot 'v2', or it has expired; its tags are v1"):
        await rollback.plan(table, "v2")
    path = Path(first[0].file_path.removeprefix("file://"))
    aside = await asyncio.to_thread(path.rename, path.with_suffix(".aside"))
    with pytest.raises(CantRollBack, match=r"1 of its files are missing in storage, or changed: .*00000\.parquet"):
        await rollback.roll_back(table, "v1")
    await asyncio.to_thread(aside.rename, path)
    (listed,) = await lake.store.list_files_awaiting_deletion()
    await lake.store.forget_deleted_files([listed.id])
    with pytest.raises(CantRollBack, match="1 of its files are deleted, or unknown to the registry"):
        await rollback.roll_back(table, str(tagged.snapshot_id))


async def test_a_claimed_file_is_not_restored(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    await lake.snapshot(table, "v1")
    await lake.compact(table, first, 1)
    for number in range(5, 11):
        await lake.insert(table, number)
        await lake.update()
    rollback = rollback_of(lake)
    plan = await rollback.plan(table, "v1")
    maintenance = maintenance_of(lake, keep_for_ms=0)
    await maintenance.expire(table)
    lake.clock.advance(HOUR)
    await maintenance.expire(table)
    await maintenance.clean()
    with pytest.raises(Conflict, match="no longer await deletion"):
        await rollback.perform(plan)
    assert len(await files_of(lake, table)) == 7


async def test_a_restored_file_is_not_deleted(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    await lake.snapshot(table, "v1")
    await lake.compact(table, first, 1)
    for number in range(5, 11):
        await lake.insert(table, number)
        await lake.update()
    rollback = rollback_of(lake)
    plan = await rollback.plan(table, "v1")
    maintenance = maintenance_of(lake, keep_for_ms=0)
    await maintenance.expire(table)
    lake.clock.advance(HOUR)
    await maintenance.expire(table)
    decided = await maintenance.cleanup._decide(table, await lake.store.list_files_awaiting_deletion())
    assert [decision.remove for decision in decided] == [True]
    await rollback.perform(plan)  # between decision and deletion
    assert [decision.remove for decision in await maintenance.cleanup._delete(table.id, decided)] == [False]
    assert there(first) == [True]


async def test_under_concurrent_inserts_and_swaps_nothing_is_lost(lake: Lake) -> None:
    """Each insert during the rollback is in the table, or was committed before it and rolled back."""
    table = await lake.create()
    base = [file for number in range(6) for file in await lake.insert(table, number)]
    await lake.snapshot(table, "v1")
    await lake.insert(table, 100)
    chance = random.Random(5)

    async def insert(number: int) -> str:
        drafts = write_files(lake.warehouse / "orders" / f"more-{number}", [row(1_000 + number)], PLAIN)
        await asyncio.sleep(chance.random() / 20)
        (file,) = await lake.store.add_files(table.id, drafts)
        return file.file_path

    async def swap() -> None:
        for file in base:
            new = write_files(lake.warehouse / "orders" / f"swap-{file.id}", [row(file.id)], PLAIN)
            try:
                await lake.store.swap_files(table.id, [file], new, operation_id=f"swap-{file.id}")
            except Conflict:
                continue  # the rollback came first
            await asyncio.sleep(chance.random() / 50)

    done = await asyncio.gather(swap(), rollback_of(lake).roll_back(table, "v1"), *(insert(n) for n in range(10)))
    plan, inserted = done[1], set(done[2:])
    assert isinstance(plan, RollbackPlan)
    now = set(await files_of(lake, table))
    assert now >= inserted - {file.file_path for file in plan.removed}
    assert inserted & {file.file_path for file in plan.removed} | (inserted & now) == inserted
    async with lake.store.consistent_read() as snapshot:
        await lake.updater.on_refresh(snapshot)
    await lake.require_agreement(table)
    assert len(lake.ids(table)) == 6 + len(inserted & now)
