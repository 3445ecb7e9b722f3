"""The executor on real Sparks: a local one, a standalone cluster, and a Spark Connect server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
import pytest_asyncio
from py4j.protocol import Py4JJavaError
from pydantic import SecretStr
from structlog.testing import capture_logs

from astha.subscribers.context import LakeSettings, S3Settings
from components.compactor.merge import MergeFailed, MergeTask
from components.compactor.spark.executor import SparkExecutor
from components.compactor.spark.messages import TaskRequest, pack
from components.compactor.spark.worker import attempt
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.spark.classic import ClassicSession
from components.lib.spark.errors import JobFailed, OutOfMemory, SessionLost, SessionProblem
from components.lib.spark.session import SparkJob
from components.lib.spark.settings import SparkSettings
from tests.integration.components.compactor.worker_tasks import attempts, run_task, written
from tests.lake import rows_of
from tests.parquet_files import PLAIN, row
from tests.servers.spark import SparkCluster, SparkConnectServer, SparkProcess
from tests.unit.components.compactor.merge import groups
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[4]
WORKERS = {"PYTHONPATH": str(ROOT)}  # so that they find the tasks

_numbers = itertools.count(1)

MakeTask: TypeAlias = Callable[[str], MergeTask]


@dataclass
class Spark:
    executor: SparkExecutor
    directory: Path
    cluster: SparkCluster | None = None
    server: SparkConnectServer | None = None

    @property
    def session(self) -> ClassicSession:
        live = self.executor._sessions.live
        assert live is not None
        assert isinstance(live.session, ClassicSession)
        return live.session


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "standalone", "connect"])
async def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Spark]:
    directory = tmp_path_factory.mktemp(request.param)
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = {f"spark.{where}.extraJavaOptions": quick for where in ("driver", "executor")}
    options["spark.executorEnv.PYTHONPATH"] = str(ROOT)
    with ExitStack() as stack:
        cluster = server = None
        if request.param == "local":
            master = "local[2]"
            events = directory / "events"
            events.mkdir()
            options |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
            options |= {"spark.eventLog.compress": "false"}
        elif request.param == "standalone":
            cluster = stack.enter_context(SparkCluster(directory, environment=WORKERS))
            master = cluster.master
            options |= {"spark.executor.memory": "512m"}
        else:
            server = stack.enter_context(SparkConnectServer(directory, environment=WORKERS))
            master, options = server.url, {}
        settings = SparkSettings(master=master, options=options, stop_timeout_s=10.0)
        executor = SparkExecutor(settings, run_task)
        yield Spark(executor, directory, cluster, server)
        await executor.close()


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spark", [kind], indirect=True)


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    def make(kind: str) -> MergeTask:
        number = next(_numbers)
        return MergeTask(
            operation_id=f"op-{number}", table="shop.orders", partition_path=kind, inputs=(), versions=(),
            outputs=((tmp_path / f"{number}.parquet").as_uri(),),
            lake=LakeSettings(s3=S3Settings(secret_key=SecretStr("a-secret-to-keep"))),
        )  # fmt: skip

    return make


async def begin(spark: Spark, task: MergeTask) -> asyncio.Task[object]:
    """Returns once a worker writes."""
    merging: asyncio.Task[object] = asyncio.create_task(spark.executor.merge(task))
    await eventually(lambda: merging.done() or written(task).exists(), "a worker that writes", 120)
    assert not merging.done(), merging.exception()
    return merging


async def assert_nothing_writes(spark: Spark, task: MergeTask, make_task: MakeTask) -> None:
    """The task writes every 10 ms: its file does not come back while another task is merged."""
    written(task).unlink()
    await spark.executor.merge(make_task("write"))
    assert not written(task).exists()


async def test_a_task_is_merged_in_a_worker(spark: Spark, make_task: MakeTask) -> None:
    tasks = [make_task("write") for _ in range(3)]
    results = await asyncio.gather(*map(spark.executor.merge, tasks))
    assert [result.why for result in results] == ["write"] * 3
    assert [written(task).read_text() for task in tasks] == ["whole"] * 3
    assert os.getpid() not in {result.bytes_written for result in results}
    assert all(len(attempts(task)) == 1 for task in tasks)
    await spark.executor.health()
    assert spark.executor.progress() == []


async def test_a_group_of_files(spark: Spark, tmp_path: Path) -> None:
    rows = [rows_of(PLAIN, *(row(file * 3 + number) for number in range(3))) for file in range(4)]
    inputs = [groups.write(tmp_path / f"{file}.parquet", some, PLAIN) for file, some in enumerate(rows)]
    result = await spark.executor.merge(groups.task(tmp_path, inputs, PLAIN))
    assert result.proven
    assert sorted(groups.read(result)["id"].to_pylist()) == list(range(12))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("refuse", MergeFailed, "file:///a.parquet: not what its row says"),
        ("lose storage", StorageUnavailable, "no answer"),
        ("stumble", JobFailed, "ZeroDivisionError: a mistake of ours"),
        ("fill memory", OutOfMemory, "no room for 3 rows"),
        ("die", OutOfMemory, "most likely because it used too much memory"),
    ],
)
async def test_errors_of_a_worker(
    spark: Spark, make_task: MakeTask, kind: str, error: type[Exception], message: str
) -> None:
    task = make_task(kind)
    with pytest.raises(error, match=message) as raised:
        await spark.executor.merge(task)
    assert getattr(raised.value, "settled", True)
    # An attempt that reports its failure is not repeated; one that dies is, on another executor only.
    assert len(attempts(task)) <= (2 if kind == "die" else 1)


async def test_a_cancelled_task_no_longer_writes(spark: Spark, make_task: MakeTask) -> None:
    task = make_task("write slowly")
    merging = await begin(spark, task)
    (progress,) = spark.executor.progress()
    assert (progress.operation_id, progress.state, progress.attempts) == (task.operation_id, "running", 1)
    assert spark.executor.ready
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    await assert_nothing_writes(spark, task, make_task)
    assert len(attempts(task)) == 1


@only("local")
async def test_spark_alone_reports_a_cancelled_task_as_ended_while_its_worker_writes(
    spark: Spark, make_task: MakeTask
) -> None:
    """Why there is a worker lease (decision 0011). If this fails, Spark waits for workers: then the lease may go."""
    await spark.executor.start()
    task = make_task("write slowly")
    request = TaskRequest(pack(run_task, task), "no lease", None, 10.0)
    job = SparkJob("without-a-lease", "a task without a lease", attempt, request.encode())
    running = asyncio.create_task(asyncio.to_thread(spark.session.run, job))
    await eventually(lambda: running.done() or written(task).exists(), "a worker that writes", 120)
    await asyncio.to_thread(spark.session.cancel, job)
    with pytest.raises(Py4JJavaError, match="cancelled"):
        await running
    try:
        written(task).unlink()
        await eventually(written(task).exists, "a write after Spark has reported the end", 10)
    finally:
        for pid in attempts(task):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@only("local")
async def test_a_task_that_ignores_interrupts_is_killed(spark: Spark, make_task: MakeTask) -> None:
    task = make_task("ignore everything")
    merging = await begin(spark, task)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    await assert_nothing_writes(spark, task, make_task)


@only("local")
async def test_a_task_that_waits_for_a_core_is_cancelled_at_once(spark: Spark, make_task: MakeTask) -> None:
    busy = [await begin(spark, make_task("write slowly")) for _ in range(2)]
    task = make_task("write")
    waiting = asyncio.create_task(spark.executor.merge(task))
    await eventually(lambda: len(spark.executor.progress()) == 3, "three tasks")
    assert [progress.state for progress in spark.executor.progress()] == ["running", "running", "waiting"]
    for merging in (waiting, *busy):
        merging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await merging
    assert attempts(task) == []


@only("local")
async def test_a_crash_is_told_from_a_lack_of_memory(spark: Spark, make_task: MakeTask) -> None:
    with pytest.raises(JobFailed, match="a worker crashed: Segmentation fault"):
        await spark.executor.merge(make_task("crash"))


@only("local")
async def test_memory_of_the_jvm_and_its_workers(spark: Spark, make_task: MakeTask) -> None:
    await spark.executor.merge(make_task("write"))
    memory = await spark.executor.memory()
    assert memory.jvm > 50 << 20
    assert memory.workers > 10 << 20
    assert memory.processes >= 2


@only("local")
async def test_a_process_has_one_session(spark: Spark, make_task: MakeTask) -> None:
    await spark.executor.merge(make_task("write"))
    other = SparkExecutor(SparkSettings(master="local[1]"), run_task)
    try:
        with pytest.raises(SessionProblem, match=r"has a Spark session already .* with master local\[1\]"):
            await other.merge(make_task("write"))
    finally:
        await other.close()
    await spark.executor.merge(make_task("write"))


@only("local")
async def test_workers_that_are_unfit(spark: Spark, make_task: MakeTask, tmp_path: Path) -> None:
    await spark.executor.merge(make_task("write"))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -P "$@"\n')
    bare.chmod(0o755)
    context = spark.session.context
    fit = context.pythonExec
    try:
        context.pythonExec = str(bare)
        with pytest.raises(SessionProblem, match=r"workers lack something .*No module named .*need the package astha"):
            await spark.executor.merge(make_task("write"))
        context.pythonExec = "/nowhere/python"
        with pytest.raises(SessionProblem, match="workers have no Python '/nowhere/python'"):
            await spark.executor.merge(make_task("write"))
    finally:
        context.pythonExec = fit


@only("local")
async def test_a_dead_jvm_is_replaced(spark: Spark, make_task: MakeTask) -> None:
    await spark.executor.merge(make_task("write"))
    started = spark.executor.sessions_started
    task = make_task("write slowly")
    merging = await begin(spark, task)
    assert spark.session.pid is not None
    os.kill(spark.session.pid, signal.SIGKILL)
    with pytest.raises(SessionLost, match="killed by signal 9") as raised:
        await merging
    assert raised.value.settled
    await assert_nothing_writes(spark, task, make_task)
    assert spark.executor.sessions_started == started + 1
    # And again, while it is idle: the merge is not affected.
    assert spark.session.pid is not None
    os.kill(spark.session.pid, signal.SIGKILL)
    task = make_task("write")
    await spark.executor.merge(task)
    assert len(attempts(task)) == 1
    assert spark.executor.sessions_started == started + 2


@only("local")
async def test_secrets_are_not_shown(spark: Spark, make_task: MakeTask) -> None:
    with capture_logs() as logs:
        with pytest.raises(OutOfMemory):
            await spark.executor.merge(make_task("die"))
        await spark.executor.merge(make_task("write"))
    assert "a-secret-to-keep" not in str(logs)
    shown = [path.read_text() for path in (spark.directory / "events").rglob("*") if path.is_file()]
    assert any("shop.orders" in text for text in shown)  # the UI shows what is in here
    assert not any("a-secret-to-keep" in text for text in shown)


@only("standalone")
async def test_spark_replaces_a_lost_executor(spark: Spark, make_task: MakeTask) -> None:
    assert spark.cluster is not None
    task = make_task("die once")
    merging = await begin(spark, task)
    host = worker_of(spark.cluster, attempts(task)[0])
    host.kill()
    await merging
    assert written(task).read_text() == "whole"
    assert len(attempts(task)) == 2
    assert worker_of(spark.cluster, attempts(task)[1]) is not host
    spark.cluster.start_worker(host)


def worker_of(cluster: SparkCluster, pid: int) -> SparkProcess:
    """Returns the worker whose descendant the process is."""
    above = {process.pid for process in psutil.Process(pid).parents()}
    return next(worker for worker in cluster.workers if worker.pid in above)


@only("connect")
async def test_a_connect_server_that_is_restarted(spark: Spark, make_task: MakeTask) -> None:
    assert spark.server is not None
    task = make_task("write slowly")
    merging = await begin(spark, task)
    spark.server.process.kill()
    with pytest.raises(SessionLost, match="went away") as raised:
        await merging
    assert raised.value.settled
    with pytest.raises(SessionProblem, match="is a Spark Connect server there"):
        await spark.executor.merge(make_task("write"))
    with pytest.raises(SessionProblem):
        await spark.executor.health()
    spark.server.start()
    await assert_nothing_writes(spark, task, make_task)
    await spark.executor.health()


async def test_a_master_that_does_not_answer(make_task: MakeTask) -> None:
    executor = SparkExecutor(SparkSettings(master="spark://127.0.0.1:1"), run_task)
    try:
        with pytest.raises(SessionProblem, match="no Spark master answers at"):
            await executor.merge(make_task("write"))
        with pytest.raises(SessionProblem):
            await executor.health()
    finally:
        await executor.close()
