"""Many tables due at once: concurrency is limited, and a busy thread is healthy."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import msgspec
import pytest

from registry.forwarding import ForwardingStore
from registry.models import LakeTable, TableSnapshot
from tests.integration.components.snapshotter.conftest import Lake
from tests.waiting import eventually

TABLES = 24
LIMIT = 3


class Watched(ForwardingStore):
    """Counts calls in flight by kind, and their maximum."""

    def __init__(self, inner: ForwardingStore) -> None:
        super().__init__(inner)
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def request_snapshot(self, table_id: int, **rest: object) -> TableSnapshot:
        async with self._counted("request"):
            return await self.inner.request_snapshot(table_id, **rest)  # type: ignore[arg-type]

    async def get_table_by_id(self, table_id: int) -> LakeTable | None:
        async with self._counted("look"):
            return await self.inner.get_table_by_id(table_id)

    def _counted(self, what: str) -> _Counted:
        return _Counted(self, what)


class _Counted:
    def __init__(self, watched: Watched, what: str) -> None:
        self._watched, self._what = watched, what

    async def __aenter__(self) -> None:
        self._watched.now[self._what] += 1
        self._watched.most[self._what] = max(self._watched.most[self._what], self._watched.now[self._what])
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        self._watched.now[self._what] -= 1


@pytest.mark.slow
async def test_requests_of_due_tables_are_limited(lake: Lake) -> None:
    tables = [await lake.create(f"t{number}", {"snapshot.every": "1h"}) for number in range(TABLES)]
    for table in tables:
        await lake.insert(table, 1)
    await lake.update()
    watched = Watched(lake.store)  # type: ignore[arg-type]
    lake.context = msgspec.structs.replace(lake.context, store=watched)
    await lake.restart(max_concurrent_requests=LIMIT, check_every_s=0.02)

    async def requested() -> bool:
        rows = [row for table in tables for row in await lake.store.list_snapshots(table.id)]
        return len(rows) == TABLES

    await eventually(requested, "a request for every table", 60)
    assert watched.most["request"] <= LIMIT
    for table in tables:
        await lake.see_rows(table)
    await lake.tell()

    async def created() -> bool:
        rows = [row for table in tables for row in await lake.store.list_snapshots(table.id)]
        return [row.status for row in rows] == ["created"] * TABLES

    await eventually(created, "a snapshot of every table", 120)
    assert watched.most["look"] <= LIMIT + 1, "plus the one of maintenance"


async def test_a_refresh_during_requests_repeats_none(lake: Lake) -> None:
    """The refresh reads a snapshot from before the requests; their events arrive after it."""
    tables = [await lake.create(f"t{number}", {"snapshot.every": "1h"}) for number in range(6)]
    for table in tables:
        await lake.insert(table, 1)
    await lake.update()
    async with lake.store.consistent_read() as before:
        await lake.restart(max_concurrent_requests=2, check_every_s=0.02)

        async def requested() -> bool:
            rows = [await lake.store.list_snapshots(table.id) for table in tables]
            return all(rows)

        await eventually(requested, "a request for every table")
        await lake.snapshotter.on_refresh(before)
    for _ in range(5):
        for table in tables:
            lake.snapshotter._scheduler.request_if_due(table.id)
        await asyncio.sleep(0.02)
    assert [len(await lake.store.list_snapshots(table.id)) for table in tables] == [1] * 6
    assert len(lake.snapshotter._scheduler.due) == 0


async def test_a_busy_thread_is_healthy(lake: Lake) -> None:
    """The health check has a thread and a connection of its own."""
    go_on = threading.Event()
    calls = (lake.snapshotter._call, lake.updater._opened_thread().call)
    busy = [asyncio.create_task(call(go_on.wait)) for call in calls]
    try:
        for component in (lake.snapshotter, lake.updater):
            assert await asyncio.wait_for(component.on_health(), 30) is True
        assert not any(task.done() for task in busy)
    finally:
        go_on.set()
        await asyncio.gather(*busy)
