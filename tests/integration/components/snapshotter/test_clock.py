"""After a clock jump no snapshot expires and no file is deleted until the new time has proved stable."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from astha.clock_guard import ClockGuard, ClockSettings
from components.lib.lake.storage.objects import Objects
from components.metadata_orchestrator.maintenance import Maintenance
from components.metadata_orchestrator.settings import OrchestratorSettings
from registry.contract import MetadataStore
from registry.models import DatabaseTime
from tests.doubles.clock import ManualClock
from tests.integration.components.snapshotter.conftest import Lake, WaitingClock
from tests.parquet_files import row, write_file

DAYS_MS = 10 * 86_400_000
SETTLED = timedelta(seconds=900)


async def no_clock() -> DatabaseTime:
    """No database time: the test sets the clock."""
    return DatabaseTime(None)


def guard_of(clock: ManualClock) -> ClockGuard:
    return ClockGuard(clock, ClockSettings(), no_clock)


async def test_snapshots_and_files_survive_a_clock_jump(lake: Lake) -> None:
    guard = guard_of(lake.clock)
    lake.context = msgspec.structs.replace(lake.context, clock_guard=guard)
    table = await lake.create(properties={"snapshot.keep-for": "5d", "snapshot.grace": "1h"})
    old = await lake.insert(table, 1)
    await lake.restart()
    await lake.snapshot(table, "v1")
    await lake.insert(table, 2)
    await lake.remove(table, old)
    await lake.update()
    await lake.tell()
    lake.clock.set(lake.clock.now_ms() + DAYS_MS)
    await lake.snapshotter.maintain()
    assert [known.status for known in await lake.store.list_snapshots(table.id)] == ["created"]
    assert len(await lake.store.list_files_awaiting_deletion()) == 1
    lake.clock.advance(SETTLED)
    await lake.snapshotter.maintain()
    assert [known.status for known in await lake.store.list_snapshots(table.id)] == ["expired"]


async def test_uploads_survive_a_clock_jump(lake: Lake, store: MetadataStore) -> None:
    draft = write_file(lake.warehouse / "left", [row(1)])
    await store.record_intents([draft.file_path], purpose="insert 1", owner="a writer")
    clock, guard = WaitingClock(lake.clock), guard_of(lake.clock)
    orchestrator = Maintenance(store, Objects(lake.settings), clock, OrchestratorSettings(), 900.0, guard)
    lake.clock.set(lake.clock.now_ms() + DAYS_MS)
    await orchestrator.clean()
    assert orchestrator.statistics.objects_deleted == 0
    assert len(await store.list_stale_intents(0)) == 1
    lake.clock.advance(SETTLED)
    await orchestrator.clean()
    assert orchestrator.statistics.objects_deleted == 1
