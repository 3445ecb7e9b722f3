"""The executor on real Sparks: a local one, a standalone cluster, and a Spark Connect server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
import pytest_asyncio
from pydantic import SecretStr
from structlog.testing import capture_logs

from astha.subscribers.context import LakeSettings, S3Settings
from components.compactor.merge import MergeFailed, MergeTask
from components.compactor.spark.classic import ClassicSession
from components.compactor.spark.errors import JobFailed, OutOfMemory, SessionLost, SessionProblem
from components.compactor.spark.executor import SparkExecutor
from components.compactor.spark.settings import SparkSettings
from components.lib.lake.storage.objects import StorageUnavailable
from tests.integration.components.compactor.chores import attempts, chore, written
from tests.lake import rows_of
from tests.parquet_files import PLAIN, row
from tests.servers.spark import SparkCluster, SparkConnectServer, SparkProcess
from tests.unit.components.compactor.merge import groups
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[4]
WORKERS = {"PYTHONPATH": str(ROOT)}  # so that they find the chores

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
        settings = SparkSettings(master=master, options=options, stop_s=10.0)
        executor = SparkExecutor(settings, chore)
        yield Spark(executor, directory, cluster, server)
        await executor.close()


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spark", [kind], indirect=True)


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    def make(chore: str) -> MergeTask:
        number = next(_numbers)
        return MergeTask(
            operation_id=f"op-{number}", table="shop.orders", partition_path=chore, inputs=(), versions=(),
            outputs=((tmp_path / f"{number}.parquet").as_uri(),),
            lake=LakeSettings(s3=S3Settings(secret_key=SecretStr("a-secret-to-keep"))),
        )  # fmt: skip

    return make


async def begin(spark: Spark, task: MergeTask) -> asyncio.Task[object]:
    """Returns when a worker writes."""
    merging: asyncio.Task[object] = asyncio.create_task(spark.executor.merge(task))
    await eventually(lambda: merging.done() or written(task).exists(), "a worker that writes", 120)
    assert not merging.done(), merging.exception()
    return merging


async def assert_nothing_writes(spark: Spark, task: MergeTask, make_task: MakeTask) -> None:
    """What it writes every 10 ms does not come back while another task is merged."""
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
    ("word", "error", "told"),
    [
        ("refuse", MergeFailed, "file:///a.parquet: not what its row says"),
        ("lose storage", StorageUnavailable, "no answer"),
        ("stumble", JobFailed, "ZeroDivisionError: a mistake of ours"),
        ("fill memory", OutOfMemory, "no room for 3 rows"),
        ("die", OutOfMemory, "most likely for the memory"),
    ],
)
async def test_what_goes_wrong_in_a_worker(
    spark: Spark, make_task: MakeTask, word: str, error: type[Exception], told: str
) -> None:
    task = make_task(word)
    with pytest.raises(error, match=told) as raised:
        await spark.executor.merge(task)
    assert getattr(raised.value, "settled", True)
    # What an attempt can say about itself is not tried again; one that dies without a word, on another executor only.
    assert len(attempts(task)) <= (2 if word == "die" else 1)


async def test_a_cancelled_task_writes_nothing_any_more(spark: Spark, make_task: MakeTask) -> None:
    task = make_task("write slowly")
    merging = await begin(spark, task)
    (progress,) = spark.executor.progress()
    assert (progress.operation_id, progress.state, progress.attempts) == (task.operation_id, "running", 1)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    await assert_nothing_writes(spark, task, make_task)
    assert len(attempts(task)) == 1


@only("local")
async def test_a_task_that_does_not_listen_is_killed(spark: Spark, make_task: MakeTask) -> None:
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
async def test_a_crash_is_not_taken_for_a_lack_of_memory(spark: Spark, make_task: MakeTask) -> None:
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
    other = SparkExecutor(SparkSettings(master="local[1]"), chore)
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
    # And again, while it is idle: nobody needs to know.
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
    assert any("shop.orders" in text for text in shown)  # all that the UI shows comes from here
    assert not any("a-secret-to-keep" in text for text in shown)


@only("standalone")
async def test_a_lost_executor_is_for_spark_to_replace(spark: Spark, make_task: MakeTask) -> None:
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
    """The one below which a process is."""
    above = {process.pid for process in psutil.Process(pid).parents()}
    return next(worker for worker in cluster.workers if worker.pid in above)


@only("connect")
async def test_a_connect_server_that_goes_and_comes_back(spark: Spark, make_task: MakeTask) -> None:
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


async def test_no_master_is_there(make_task: MakeTask) -> None:
    executor = SparkExecutor(SparkSettings(master="spark://127.0.0.1:1"), chore)
    try:
        with pytest.raises(SessionProblem, match="no Spark master answers at"):
            await executor.merge(make_task("write"))
        with pytest.raises(SessionProblem):
            await executor.health()
    finally:
        await executor.close()
