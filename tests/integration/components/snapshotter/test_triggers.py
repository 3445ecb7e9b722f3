from __future__ import annotations

from datetime import timedelta

from registry.models import LakeTable, TableSnapshot
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_expiration import there
from tests.waiting import eventually


async def asked(lake: Lake, table: LakeTable, number: int) -> list[TableSnapshot]:
    async def enough() -> bool:
        return len(await lake.store.list_snapshots(table.id)) >= number

    await eventually(enough, f"request {number}")
    return await lake.store.list_snapshots(table.id)


async def test_by_size_once_per_limit(lake: Lake) -> None:
    table = await lake.create(properties={"snapshot.after-rows": "3"})
    await lake.insert(table, 1, 2)
    await lake.tell()
    await lake.insert(table, 3)
    given = await lake.tell()
    (request,) = await asked(lake, table, 1)
    assert (request.trigger, request.reason) == ("size", "3 rows since the last one")
    await lake.restart()  # finds the open request and makes no other
    for events in given:
        await lake.snapshotter.on_transaction(events)
    await lake.update()
    done = await lake.answered(request)
    assert lake.ids(table, done.snapshot_id) == [1, 2, 3]
    await lake.restart()  # growth is now estimated from the totals
    await lake.see_rows(table)
    await lake.insert(table, 4, 5)
    await lake.update()
    await lake.tell()
    await lake.snapshot(table, "by-hand")
    await lake.insert(table, 6, 7)
    await lake.tell()
    await lake.insert(table, 8)
    await lake.tell()
    rows = await asked(lake, table, 3)
    assert [known.trigger for known in rows] == ["size", "manual", "size"]


async def test_by_time(lake: Lake) -> None:
    await lake.restart(check_every_s=0.01)
    table = await lake.create(properties={"snapshot.every": "1h"})
    quiet = await lake.create("quiet", properties={"snapshot.every": "1h"})
    await lake.insert(table, 1)
    await lake.update()
    await lake.tell()
    (request,) = await asked(lake, table, 1)
    assert request.trigger == "time"
    await lake.see_rows(table)
    await lake.tell()
    await lake.answered(request)
    await lake.see_rows(table)
    await lake.insert(table, 2)
    await lake.update()
    await lake.tell()
    lake.clock.advance(timedelta(hours=1))
    rows = await asked(lake, table, 2)
    assert [known.trigger for known in rows] == ["time", "time"]
    assert await lake.store.list_snapshots(quiet.id) == [], "it has not changed"


async def test_maintenance_follows_the_tables_policies(lake: Lake) -> None:
    table = await lake.create(properties={"snapshot.keep": "1", "snapshot.grace": "1h"})
    old = await lake.insert(table, 1)
    await lake.snapshot(table, "v1")
    await lake.compact(table, old, 1)
    for number in range(5, 9):
        await lake.insert(table, number)
        await lake.update()
    await lake.snapshot(table, "v2")
    await lake.snapshotter.maintain()
    assert [known.status for known in await lake.store.list_snapshots(table.id)] == ["expired", "created"]
    assert there(old) == [True]
    await lake.see_rows(table)
    await lake.tell()
    lake.clock.advance(timedelta(hours=1))
    await lake.snapshotter.maintain()
    assert set(lake.tags(table)) == {"v2"}
    assert there(old) == [False]
    assert lake.ids(table) == [1, 5, 6, 7, 8]
    shown = {(metric.name, *metric.labels.values()): metric.value for metric in lake.snapshotter.metrics()}
    assert shown == {
        ("tables_due",): 0, ("tables_waiting",): 0,
        ("snapshots", "created"): 2, ("snapshots", "failed"): 0, ("snapshots", "expired"): 1,
        ("files_deleted",): 1, ("maintenance_failures",): 0,
    }  # fmt: skip
