from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from components.compactor.merge import MergeResult, MergeTask
from components.compactor.spark.executor import RunningTask, SparkExecutor
from components.compactor.spark.messages import TaskReply, TaskRequest
from components.compactor.spark.worker_probe import WorkerVersions
from components.lib.spark.errors import (
    JobFailed,
    OutOfMemory,
    SessionLost,
    SessionProblem,
    SparkError,
    StillWriting,
    TaskTimeout,
)
from components.lib.spark.network import driver_addresses
from components.lib.spark.settings import SparkSettings
from tests.doubles.spark import FakeSession, ScriptedWorker, follow_protocol
from tests.waiting import eventually

RESULT = MergeResult(
    files=[], rows_in=1, rows_out=1, checksums_in={}, checksums_out={}, bytes_read=0, bytes_written=0, strategy="copy",
    why="", seconds={},
)  # fmt: skip

ON_DISK = MergeTask(
    operation_id="op", table="shop.orders", partition_path="", inputs=(), outputs=("file:///a",), versions=()
)
ON_S3 = MergeTask(
    operation_id="op", table="shop.orders", partition_path="", inputs=(), outputs=("s3://lake/a",), versions=()
)


def merge(_task: MergeTask) -> MergeResult:
    return RESULT


class Setup:
    """An executor with the sessions listed here; the last one is used repeatedly."""

    def __init__(self) -> None:
        self.sessions = [FakeSession()]
        self.opened = 0
        self.ended: list[Callable[[], None]] = []
        settings = SparkSettings(stop_timeout_s=1.0, answer_timeout_s=0.2, start_timeout_s=20.0)
        self.executor = SparkExecutor(settings, merge, self._open)

    @property
    def session(self) -> FakeSession:
        return self.sessions[max(self.opened - 1, 0)]

    def _open(self, _settings: SparkSettings, _host: str, ended: Callable[[], None]) -> FakeSession:
        session = self.sessions[min(self.opened, len(self.sessions) - 1)]
        self.opened = min(self.opened + 1, len(self.sessions))
        self.ended.append(ended)
        return session


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    await setup.executor.close()


@contextmanager
def released() -> Iterator[threading.Event]:
    """Releases waiting threads at the end of the test."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


async def test_a_session_is_started_by_the_first_merge_and_kept(setup: Setup) -> None:
    await setup.executor.health()
    assert setup.executor.sessions_started == 0
    await asyncio.gather(*(setup.executor.merge(ON_DISK) for _ in range(5)))
    assert setup.executor.sessions_started == 1
    assert len(setup.session.jobs) == 5
    assert setup.session.jobs[0].description == "astha op: shop.orders"


async def test_a_failed_start_is_raised_by_all_merges_and_retried(setup: Setup) -> None:
    setup.session.problem = SessionProblem("no java")
    answers = await asyncio.gather(*(setup.executor.merge(ON_DISK) for _ in range(2)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["no java", "no java"]
    with pytest.raises(SessionProblem, match="no java"):
        await setup.executor.health()
    setup.session.problem = None
    await setup.executor.health()
    assert await setup.executor.merge(ON_DISK) == RESULT


async def test_workers_of_another_version_are_refused(setup: Setup) -> None:
    setup.session.versions = WorkerVersions("there", "0.0.1", "3.11", "22")
    with pytest.raises(SessionProblem, match=r"the worker on there has astha 0\.0\.1"):
        await setup.executor.merge(ON_DISK)
    assert setup.session.closed.is_set()


async def test_a_worker_that_stops_releases_its_lease(setup: Setup) -> None:
    def stop(request: TaskRequest, _session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        worker = ScriptedWorker(request.lease_address, request.token)
        assert (worker.receive(), worker.receive()) == ("go", "stop")
        worker.say_bye()
        return TaskReply("stopped")

    setup.session.script = stop
    merging = asyncio.create_task(setup.executor.merge(ON_S3))
    await eventually(lambda: [one.state for one in setup.executor.progress()] == ["running"], "a worker at work")
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    assert setup.executor.progress() == []


async def test_a_worker_that_can_not_be_stopped_is_reported(setup: Setup) -> None:
    with released() as end:

        def ignore(request: TaskRequest, _session: FakeSession) -> TaskReply:
            assert request.lease_address is not None
            worker = ScriptedWorker(request.lease_address, request.token)
            end.wait(30)
            worker.die()
            return TaskReply("stopped")

        setup.session.script = ignore
        merging = asyncio.create_task(setup.executor.merge(ON_DISK))
        await eventually(lambda: [one.state for one in setup.executor.progress()] == ["running"], "a worker at work")
        merging.cancel()
        merging.cancel()
        with pytest.raises(StillWriting, match="left to the cleaner") as raised:
            await merging
        assert not raised.value.settled
        assert setup.session.cancelled


async def test_a_worker_that_takes_too_long_is_stopped(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.compactor.spark.executor._CHECK_LIMIT_S", 0.02)
    limited = msgspec.structs.replace(ON_DISK, limit_s=0.1)

    def stop(request: TaskRequest, _session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        assert request.limit_s == limited.limit_s
        worker = ScriptedWorker(request.lease_address, request.token)
        assert (worker.receive(), worker.receive()) == ("go", "stop")
        worker.say_bye()
        return TaskReply("stopped")

    setup.session.script = stop
    with pytest.raises(TaskTimeout, match=r"longer than 0 s in process 2 on here, and was ended") as raised:
        await setup.executor.merge(limited)
    assert raised.value.settled
    assert setup.executor.progress() == []
    setup.session.script = follow_protocol
    assert await setup.executor.merge(limited) == RESULT
    assert setup.executor.sessions_started == 1


async def test_a_task_that_waits_for_a_worker_is_not_overdue(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.compactor.spark.executor._CHECK_LIMIT_S", 0.01)
    looks = threading.Semaphore(0)
    overdue = vars(RunningTask)["overdue"].fget

    def look(running: RunningTask) -> bool:
        waits = running.lease.holder is None  # once a worker has it, the limit may pass on a busy machine
        looks.release()
        return waits and bool(overdue(running))

    def wait_for_a_core(request: TaskRequest, session: FakeSession) -> TaskReply:
        for _ in range(5):
            assert looks.acquire(timeout=30)
        return follow_protocol(request, session)

    monkeypatch.setattr(RunningTask, "overdue", property(look))
    setup.session.script = wait_for_a_core
    assert await setup.executor.merge(msgspec.structs.replace(ON_DISK, limit_s=0.001)) == RESULT


async def test_blocking_calls_are_made_in_a_thread(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name resolution, and waiting for the last output of a JVM."""
    asked: list[threading.Thread] = []

    def find(settings: SparkSettings) -> tuple[str, str]:
        asked.append(threading.current_thread())
        return driver_addresses(settings)

    def explain(error: Exception) -> SparkError:
        asked.append(threading.current_thread())
        return SessionLost(str(error))

    def ping() -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr("components.compactor.spark.session_pool.driver_addresses", find)
    await setup.executor.merge(ON_DISK)
    monkeypatch.setattr(setup.session, "explain", explain)
    monkeypatch.setattr(setup.session, "ping", ping)
    with pytest.raises(SessionLost, match="gone"):
        await setup.executor.health()
    assert len(asked) == 2
    assert threading.current_thread() not in asked


@pytest.mark.parametrize(("task", "settled"), [(ON_DISK, True), (ON_S3, False)])
async def test_requests_of_a_dead_worker_may_still_be_carried_out(setup: Setup, task: MergeTask, settled: bool) -> None:
    def die(request: TaskRequest, _session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        worker = ScriptedWorker(request.lease_address, request.token)
        worker.receive()
        worker.die()
        raise RuntimeError("Python worker exited unexpectedly (crashed)")

    setup.session.script = die
    with pytest.raises(OutOfMemory) as raised:
        await setup.executor.merge(task)
    assert raised.value.settled is settled


@pytest.mark.parametrize(("task", "error"), [(ON_DISK, OutOfMemory), (ON_S3, JobFailed)])
async def test_an_attempt_after_a_death(setup: Setup, task: MergeTask, error: type[SparkError]) -> None:
    """On the same executor it would die again; where requests may still be in flight, they could overtake it."""

    def die_and_try_again(request: TaskRequest, session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        worker = ScriptedWorker(request.lease_address, request.token)
        worker.receive()
        worker.die()
        return follow_protocol(request, session)

    setup.session.script = die_and_try_again
    with pytest.raises(error) as raised:
        await setup.executor.merge(task)
    assert raised.value.settled is (task is ON_DISK)


async def test_a_second_attempt_waits_for_the_end_of_the_first(setup: Setup) -> None:
    def twice(request: TaskRequest, session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        first = ScriptedWorker(request.lease_address, request.token, parent=1)
        assert first.receive() == "go"
        second = ScriptedWorker(request.lease_address, request.token, parent=7)
        assert first.receive() == "stop"
        first.say_bye()
        assert second.receive() == "go"
        second.say_bye()
        return TaskReply("done", pickle.dumps(RESULT))

    setup.session.script = twice
    assert await setup.executor.merge(ON_S3) == RESULT


async def test_a_session_that_dies_during_a_merge(setup: Setup) -> None:
    def lose(request: TaskRequest, _session: FakeSession) -> TaskReply:
        assert request.lease_address is not None
        worker = ScriptedWorker(request.lease_address, request.token)
        assert worker.receive() == "go"
        setup.ended[0]()
        assert worker.receive() == "stop"
        worker.die()
        raise SessionLost("the JVM was killed")

    setup.session.script = lose
    setup.sessions.append(FakeSession())
    with pytest.raises(SessionLost) as raised:
        await setup.executor.merge(ON_DISK)
    assert raised.value.settled
    assert setup.sessions[0].closed.is_set()
    assert await setup.executor.merge(ON_DISK) == RESULT
    assert setup.executor.sessions_started == 2


async def test_a_session_that_died_while_idle_is_replaced_silently(setup: Setup) -> None:
    def lose(_request: TaskRequest, _session: FakeSession) -> TaskReply:
        raise SessionLost("SESSION_CHANGED")

    setup.session.script = lose
    setup.sessions.append(FakeSession())
    assert await setup.executor.merge(ON_DISK) == RESULT
    setup.sessions.append(FakeSession(lose))
    setup.ended[1]()
    setup.sessions.append(FakeSession(lose))
    await eventually(lambda: setup.executor._sessions.live is None, "the loss")
    with pytest.raises(SessionLost):  # once is enough
        await setup.executor.merge(ON_DISK)


async def test_a_session_that_does_not_answer_is_replaced(setup: Setup) -> None:
    await setup.executor.merge(ON_DISK)
    setup.session.hangs = True
    with pytest.raises(SessionLost, match="did not answer"):
        await setup.executor.health()
    await setup.executor.health()
    setup.sessions.append(FakeSession())
    assert await setup.executor.merge(ON_DISK) == RESULT
    assert setup.executor.sessions_started == 2


async def test_without_a_lease_cancelled_tasks_may_still_write(setup: Setup) -> None:
    setup.session.reachable = False
    with capture_logs() as logs, released() as end:

        def write(request: TaskRequest, session: FakeSession) -> TaskReply:
            assert request.lease_address is None
            if len(session.jobs) == 1:
                return TaskReply("done", pickle.dumps(RESULT))
            end.wait(30)
            raise RuntimeError("cancelled")

        setup.session.script = write
        assert await setup.executor.merge(ON_DISK) == RESULT
        merging = asyncio.create_task(setup.executor.merge(ON_DISK))
        await eventually(lambda: len(setup.session.jobs) == 2, "the job")
        merging.cancel()
        with pytest.raises(StillWriting):
            await merging
    assert any("workers can't reach this process" in entry["event"] for entry in logs)


async def test_a_task_that_was_not_submitted_is_cancelled() -> None:
    def hang(request: TaskRequest, session: FakeSession) -> TaskReply:
        session.closed.wait(30)
        raise SessionLost("closed")

    session = FakeSession(hang)
    executor = SparkExecutor(SparkSettings(stop_timeout_s=0.2, parallel=1), merge, lambda *_: session)
    first = asyncio.create_task(executor.merge(ON_S3))
    await eventually(lambda: len(session.jobs) == 1, "the first job")
    second = asyncio.create_task(executor.merge(ON_S3))
    await eventually(lambda: len(executor.progress()) == 2, "the second")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert len(session.jobs) == 1
    await executor.close()
    with pytest.raises(SparkError):
        await first
    with pytest.raises(SessionProblem, match="the executor is closed"):
        await executor.merge(ON_DISK)


async def test_closing_cancels_a_start(setup: Setup) -> None:
    begun, end = threading.Event(), threading.Event()

    class Slow(FakeSession):
        def start(self) -> None:
            begun.set()
            end.wait(30)

        def close(self, limit_s: float) -> None:
            end.set()
            super().close(limit_s)

    slow = setup.sessions[0] = Slow()
    merging: asyncio.Task[Any] = asyncio.create_task(setup.executor.merge(ON_DISK))
    await eventually(begun.is_set, "the start")
    await setup.executor.close()
    assert slow.closed.is_set()
    with pytest.raises((SparkError, asyncio.CancelledError)):
        await merging
