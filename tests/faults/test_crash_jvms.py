"""A JVM that is killed at any point of a compaction is replaced, and the compaction done: nothing is left behind.

One point in `make test`, beside those of `test_spark_jobs.py`; all of them in `make faults`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext
from astha.subscribers.lane_policy import LanePolicy
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor import SparkExecutor
from components.compactor.subscriber import Compactor
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from tests.faults.crash_jvms import (
    IN_A_WORKER,
    WITHOUT_SESSION,
    CrashingSession,
    Point,
    ask_worker,
    marker,
    open_executor,
)
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.compactor.harness import Bench
from tests.lake import files_below
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ALL = "MINUTES" in os.environ
SOME = (Point.ANSWERING,)
PATIENCE_S = 120.0
INSERTED = 5


@pytest.fixture
async def bench(sqlite_url: str, warehouse: Path) -> AsyncIterator[Bench]:
    store = await open_store(sqlite_url)
    yield Bench(store, warehouse)
    CrashingSession.crash_at = None
    await store.close()


async def crash(bench: Bench, executor: SparkExecutor, point: Point) -> None:
    await bench.create(point.replace(" ", "_").replace(",", ""))
    directory = bench.warehouse / bench.table.name
    before = [row.id for row in await bench.store.list_compactions(limit=1)]
    if point in WITHOUT_SESSION:
        pid = (await executor.start()).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    if point in IN_A_WORKER:
        await asyncio.to_thread(ask_worker, directory, point)
    elif point is not Point.IDLE:
        CrashingSession.crash_at = point
    await bench.insert(files=INSERTED)
    rows = await bench.ids()

    async def compacted() -> bool:
        busy = await bench.store.list_compactions(statuses=["running"])
        return not busy and len(await bench.store.list_files(bench.table.id)) == 1

    await eventually(compacted, f"{point}: one file", PATIENCE_S)
    assert CrashingSession.crash_at is None
    assert not marker(directory).exists()
    assert await bench.ids() == rows
    statuses = [row.status for row in await bench.store.list_compactions() if row.id not in before]
    print(f"{point}: {statuses}, {executor.sessions_started} sessions")  # noqa: T201


async def test_killed_at_a_point(
    bench: Bench, sqlite_url: str, run_daemon: RunDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, with one daemon, as in production."""
    others = _jvms()  # servers of other tests
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = open_executor()
    settings = CompactorSettings(heartbeat_s=0.05, check_every_s=0.2)
    around = ComponentContext(bench.store, SystemLoopClock(), SecretStr(sqlite_url), bench.lake)
    compactor = Compactor(settings, around, lambda: executor)
    running = await run_daemon(sqlite_url, {"compactor": compactor}, policy=LanePolicy())
    await running.live()
    for point in Point if ALL else SOME:
        await crash(bench, executor, point)
    await running.stop()
    assert _jvms() <= others
    await clean_intents(bench.store, Objects(bench.lake), 0, "cleaner")
    for table in await bench.store.list_tables():
        bench.table = table
        await bench.require_tidy()
    assert not [name for name in files_below(bench.warehouse) if name.endswith(".partial")]
    assert not files_below(tmp_path)


def _jvms() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if "java" in child.name()}
