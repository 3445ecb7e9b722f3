"""Jobs on a real Spark that are cancelled, or whose JVM is killed: the rows stay, and nothing is left over."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from components.compactor.spark.host import SparkExecutor
from components.compactor.spark.settings import SparkSettings
from components.compactor.work.outcome import Outcome
from components.compactor.work.steps import Step
from components.lake.cleaner import clean_intents
from components.lake.objects import Objects
from registry.opening import open_store
from tests.integration.components.compactor.bench import Bench, Gate
from tests.integration.components.compactor.patient import merge_patiently
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def spark() -> AsyncIterator[SparkExecutor]:
    executor = SparkExecutor(SparkSettings(master="local[2]"), merge_patiently)
    yield executor
    await executor.close()


async def kill(spark: SparkExecutor) -> None:
    pid = (await spark.start()).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def waits(bench: Bench) -> None:
    marker = bench.warehouse / bench.table.name / "waiting"
    await eventually(marker.exists, "a worker in the middle of its merge", 120.0)


async def cancel(spark: SparkExecutor, bench: Bench) -> None:
    await bench.create("cancelled")
    files = await bench.insert(files=4)
    job = asyncio.create_task((await bench.job(spark)).run())
    await waits(bench)
    await bench.store.request_cancel(bench.table.id)
    assert (await job).status == "cancelled"
    assert await bench.store.list_files(bench.table.id) == files
    await bench.require_tidy()


async def kill_in_the_middle(spark: SparkExecutor, bench: Bench) -> Outcome:
    job = asyncio.create_task((await bench.job(spark)).run())
    await waits(bench)
    await kill(spark)
    return await job


async def test_cancelled_and_killed(spark: SparkExecutor, sqlite_url: str, warehouse: Path) -> None:
    """In one test: a session takes seconds to start. After the merge no step needs it."""
    store = await open_store(sqlite_url)
    bench = Bench(store, warehouse)
    try:
        await cancel(spark, bench)
        for step in (Step.MERGE, Step.INTENTS, Step.SWAP):
            await bench.create(f"killed_{step}")
            await bench.insert(files=4)
            before = await bench.ids()
            if step is Step.MERGE:
                outcome = await kill_in_the_middle(spark, bench)
            else:
                (warehouse / bench.table.name / "waiting").touch()  # nobody waits
                outcome = await (await bench.job(spark, reached=Gate(step, lambda: kill(spark)))).run()
            assert (outcome.status, outcome.output_files) == ("done", 1), outcome
            assert await bench.ids() == before
            await clean_intents(store, Objects(bench.lake), 0, "cleaner")
            await bench.require_tidy()
        assert spark.sessions_started == 3
    finally:
        await store.close()
