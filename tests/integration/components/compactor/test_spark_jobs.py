"""Jobs on a real Spark that are cancelled, poisoned, or whose JVM is killed: rows stay, and nothing is left over."""

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

from components.compactor.execution.failpoints import Step
from components.compactor.execution.job import Job
from components.compactor.execution.outcome import Outcome
from components.compactor.merge import MergeResult
from components.compactor.scheduling.policy import Policy
from components.compactor.spark.errors import MergeCrashed
from components.compactor.spark.executor import SparkExecutor
from components.compactor.spark.settings import SparkSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from tests.integration.components.compactor.harness import QUICK, Bench, Gate
from tests.integration.components.compactor.patient import merge_patiently
from tests.poison import HANGS, poison
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


async def poisoned(spark: SparkExecutor, bench: Bench) -> None:
    """Two damaged files: the merge names the one whose size is wrong, the look at each file alone the other one too."""
    await bench.create("poisoned")
    files = await bench.insert(files=6, rows=50)
    (bench.warehouse / bench.table.name / "waiting").touch()  # nobody waits
    good = bench.read([files[0], *files[2:4], files[5]])
    poison(parse(files[1].file_path).path)
    parse(files[4].file_path).path.write_bytes(HANGS)
    assignment = await bench.assign(policy=Policy(copy_above_bytes=1), strategy="copy")
    outcome = await Job(assignment, bench.shop(spark)).run()
    assert (outcome.status, outcome.input_files, outcome.output_files) == ("done", 4, 1), outcome
    assert {file.path: file.reason.split(":")[0] for file in outcome.left_out} == {
        files[1].file_path: "can't be read",
        files[4].file_path: f"has {len(HANGS)} bytes where the registry says {files[4].file_size:,}",
    }
    live = await bench.store.list_files(bench.table.id)
    assert bench.read([file for file in live if file.operation == "compaction"]) == good
    await bench.require_tidy()


async def aborted(spark: SparkExecutor, bench: Bench) -> None:
    """One file ends the worker that reads it: it is found by looking at each file alone, and the session survives."""
    await bench.create("aborted")
    files = await bench.insert(files=4, rows=50)
    (bench.warehouse / bench.table.name / "waiting").touch()  # nobody waits
    good = bench.read([files[0], *files[2:]])
    poison(parse(files[1].file_path).path)
    assignment = await bench.assign(policy=Policy(copy_above_bytes=1), strategy="copy")
    crashes: list[MergeCrashed] = []
    merge = spark.merge

    async def recorded(*arguments: Any, **options: Any) -> MergeResult:
        try:
            return await merge(*arguments, **options)
        except MergeCrashed as crash:
            crashes.append(crash)
            raise

    with patch.object(spark, "merge", recorded):
        outcome = await Job(assignment, bench.shop(spark)).run()
    assert (outcome.status, outcome.input_files, outcome.output_files) == ("done", 3, 1), outcome
    assert [file.path for file in outcome.left_out] == [files[1].file_path]
    assert ["Abort" in str(crash) for crash in crashes] == [True], crashes
    live = await bench.store.list_files(bench.table.id)
    assert bench.read([file for file in live if file.operation == "compaction"]) == good
    await bench.require_tidy()


async def overdue(spark: SparkExecutor, bench: Bench) -> None:
    """A worker that hangs is ended at its deadline; its files, which are innocent, are merged in halves."""
    await bench.create("overdue")
    await bench.insert(files=4)
    before = await bench.ids()
    limits = msgspec.structs.replace(QUICK, merge_timeout_s=3.0)
    outcome = await (await bench.job(spark, limits=limits)).run()
    assert (outcome.status, outcome.groups, outcome.left_out) == ("done", 2, ()), outcome
    assert await bench.ids() == before
    await bench.require_tidy()


async def test_cancelled_and_killed(spark: SparkExecutor, sqlite_url: str, warehouse: Path) -> None:
    """In one test: a session takes seconds to start. After the merge no step needs it."""
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
                (warehouse / bench.table.name / "waiting").touch()  # nobody waits
                outcome = await (await bench.job(spark, reached=Gate(step, lambda: kill(spark)))).run()
            assert (outcome.status, outcome.output_files) == ("done", 1), outcome
            assert await bench.ids() == before
            await clean_intents(store, Objects(bench.lake), 0, "cleaner")
            await bench.require_tidy()
        assert spark.sessions_started == 3
    finally:
        await store.close()
