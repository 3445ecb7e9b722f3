"""Jobs on a real Spark that are cancelled, have damaged inputs, or whose JVM is killed: no row and no file is left over
or lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import Step
from components.compactor.execution.outcome import JobOutcome
from components.compactor.merge import MergeResult
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.spark.executor import SparkExecutor
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects
from components.lib.spark.errors import WorkerCrashed
from components.lib.spark.settings import SparkSettings
from registry.connect import open_store
from tests.integration.components.compactor.harness import QUICK, Bench, Gate
from tests.integration.components.compactor.waiting_merge import merge_and_wait
from tests.poison import HANGS, poison
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def spark() -> AsyncIterator[SparkExecutor]:
    executor = SparkExecutor(SparkSettings(master="local[2]"), merge_and_wait)
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


async def kill_in_the_middle(spark: SparkExecutor, bench: Bench) -> JobOutcome:
    job = asyncio.create_task((await bench.job(spark)).run())
    await waits(bench)
    await kill(spark)
    return await job


async def poisoned(spark: SparkExecutor, bench: Bench) -> None:
    """Two damaged files: the merge finds the one with the wrong size, the inspection of each file finds the other."""
    await bench.create("poisoned")
    files = await bench.insert(files=6, rows=50)
    (bench.warehouse / bench.table.name / "waiting").touch()  # no merge waits
    good = bench.read([files[0], *files[2:4], files[5]])
    poison(parse(files[1].file_path).path)
    parse(files[4].file_path).path.write_bytes(HANGS)
    spec = await bench.spec_of(policy=CompactionPolicy(copy_above_bytes=1), strategy="copy")
    outcome = await CompactionJob(spec, bench.context(spark)).run()
    assert (outcome.status, outcome.input_files, outcome.output_files) == ("done", 4, 1), outcome
    assert {file.path: file.reason.split(":")[0] for file in outcome.left_out} == {
        files[1].file_path: "can't be read",
        files[4].file_path: f"has {len(HANGS)} bytes where the registry says {files[4].file_size:,}",
    }
    live = await bench.store.list_files(bench.table.id)
    assert bench.read([file for file in live if file.operation == "compaction"]) == good
    await bench.require_tidy()


async def aborted(spark: SparkExecutor, bench: Bench) -> None:
    """One file kills the worker that reads it: the inspection of each file finds it, and the session survives."""
    await bench.create("aborted")
    files = await bench.insert(files=4, rows=50)
    (bench.warehouse / bench.table.name / "waiting").touch()  # no merge waits
    good = bench.read([files[0], *files[2:]])
    poison(parse(files[1].file_path).path)
    spec = await bench.spec_of(policy=CompactionPolicy(copy_above_bytes=1), strategy="copy")
    crashes: list[WorkerCrashed] = []
    merge = spark.merge

    async def recorded(*arguments: Any, **options: Any) -> MergeResult:
        try:
            return await merge(*arguments, **options)
        except WorkerCrashed as crash:
            crashes.append(crash)
            raise

    with patch.object(spark, "merge", recorded):
        outcome = await CompactionJob(spec, bench.context(spark)).run()
    assert (outcome.status, outcome.input_files, outcome.output_files) == ("done", 3, 1), outcome
    assert [file.path for file in outcome.left_out] == [files[1].file_path]
    assert ["Abort" in str(crash) for crash in crashes] == [True], crashes
    live = await bench.store.list_files(bench.table.id)
    assert bench.read([file for file in live if file.operation == "compaction"]) == good
    await bench.require_tidy()


async def overdue(spark: SparkExecutor, bench: Bench) -> None:
    """A worker that hangs is ended at its time limit; its files, which are good, are merged in halves."""
    await bench.create("overdue")
    await bench.insert(files=4)
    before = await bench.ids()
    limits = msgspec.structs.replace(QUICK, merge_timeout_s=3.0)
    outcome = await (await bench.job(spark, limits=limits)).run()
    assert (outcome.status, outcome.groups, outcome.left_out) == ("done", 2, ()), outcome
    assert await bench.ids() == before
    await bench.require_tidy()


async def test_cancelled_and_killed(spark: SparkExecutor, sqlite_url: str, warehouse: Path) -> None:
    """In one test, because a session takes seconds to start. After the merge no step needs it."""
    store = await open_store(sqlite_url)
    bench = Bench(store, warehouse)
    try:
        await cancel(spark, bench)
        await poisoned(spark, bench)
        await aborted(spark, bench)
        await overdue(spark, bench)
        assert spark.sessions_started == 1
        for step in (Step.MERGE, Step.INTENTS, Step.SWAP):
            await bench.create(f"killed_{step}")
            await bench.insert(files=4)
            before = await bench.ids()
            if step is Step.MERGE:
                outcome = await kill_in_the_middle(spark, bench)
            else:
                (warehouse / bench.table.name / "waiting").touch()  # no merge waits
                outcome = await (await bench.job(spark, on_step=Gate(step, lambda: kill(spark)))).run()
            assert (outcome.status, outcome.output_files) == ("done", 1), outcome
            assert await bench.ids() == before
            await clean_intents(store, Objects(bench.lake), 0, "cleaner")
            await bench.require_tidy()
        assert spark.sessions_started == 3
    finally:
        await store.close()
