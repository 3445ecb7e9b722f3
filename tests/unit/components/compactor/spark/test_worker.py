"""A worker process: what it does when it is stopped, and when its driver is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from components.compactor.spark.messages import TaskReply, TaskRequest, Work, pack
from components.compactor.spark.worker import attempt
from components.compactor.spark.worker_lease import LeaseServer
from tests.waiting import eventually

_ROOT = Path(__file__).parents[5]
_RUN = (
    "import sys; from components.compactor.spark.worker import attempt; "
    "sys.stdout.buffer.write(attempt(sys.stdin.buffer.read()))"
)


def work_for_ever(notes: str) -> None:
    try:
        Path(notes).write_text("begun")
        time.sleep(60)
    finally:
        Path(notes).write_text("ended in order")


def work_and_not_listen(notes: str) -> None:
    while True:
        try:
            Path(notes).write_text("begun")
            time.sleep(60)
        except BaseException:  # noqa: S112
            continue


def upload_for_a_while(notes: str) -> None:
    """Finishes the request, as `Objects.write` does when it is cancelled."""

    async def upload() -> None:
        async def send() -> None:
            await asyncio.to_thread(Path(notes).write_text, "begun")
            await asyncio.sleep(0.3)
            await asyncio.to_thread(Path(notes).write_text, "arrived")

        sending = asyncio.ensure_future(send())
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait([sending])
            raise

    asyncio.run(upload())


def double(number: int) -> int:
    return 2 * number


def raise_unpicklable(_nothing: object) -> None:
    class Local(Exception):
        pass

    raise Local("only here")


@pytest.fixture
async def leases() -> AsyncIterator[LeaseServer]:
    leases = LeaseServer(take_over_s=0.2)
    leases.port = await leases.open("127.0.0.1", 0)  # type: ignore[attr-defined]
    yield leases
    await leases.close()


def request(leases: Any, token: str, work: Work, argument: object, grace_s: float = 30.0) -> TaskRequest:
    return TaskRequest(pack(work, argument), token, ("127.0.0.1", leases.port), grace_s)


class Process:
    """A worker process for one request."""

    def __init__(self, given: TaskRequest) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(given.encode())
        self._process.stdin.close()

    async def reply(self) -> TaskReply | None:
        """Returns None if it ended without a reply."""
        assert self._process.stdout is not None
        answer = await asyncio.to_thread(self._process.stdout.read)
        self._process.stdout.close()
        code = await asyncio.to_thread(self._process.wait, 30)
        return TaskReply.decode(answer) if code == 0 else None


async def test_a_stop_interrupts_the_work_and_releases_the_lease(leases: LeaseServer, tmp_path: Path) -> None:
    lease = leases.issue(local=False)
    notes = tmp_path / "notes"
    process = Process(request(leases, lease.token, work_for_ever, str(notes)))
    await eventually(notes.exists, "the work")
    assert await lease.revoke(30)
    assert notes.read_text() == "ended in order"
    assert await process.reply() == TaskReply("stopped")


async def test_a_request_to_the_storage_is_finished_before_the_stop(leases: LeaseServer, tmp_path: Path) -> None:
    lease = leases.issue(local=False)
    notes = tmp_path / "notes"
    process = Process(request(leases, lease.token, upload_for_a_while, str(notes)))
    await eventually(lambda: notes.exists() and notes.read_text() == "begun", "the upload")
    assert await lease.revoke(30)
    assert notes.read_text() == "arrived"
    assert await process.reply() == TaskReply("stopped")


async def test_a_worker_that_ignores_the_stop_is_ended(leases: LeaseServer, tmp_path: Path) -> None:
    lease = leases.issue(local=True)
    notes = tmp_path / "notes"
    process = Process(request(leases, lease.token, work_and_not_listen, str(notes), 0.1))
    await eventually(notes.exists, "the work")
    assert await lease.revoke(30)
    assert len(lease.lost_holders) == 1
    assert await process.reply() is None


async def test_a_worker_that_loses_the_driver_stops(leases: LeaseServer, tmp_path: Path) -> None:
    lease = leases.issue(local=True)
    notes = tmp_path / "notes"
    process = Process(request(leases, lease.token, work_for_ever, str(notes)))
    await eventually(notes.exists, "the work")
    await leases.close()
    assert await process.reply() == TaskReply("stopped")


async def test_a_refused_worker_does_nothing(leases: LeaseServer, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    process = Process(request(leases, "unknown", work_for_ever, str(notes)))
    assert await process.reply() == TaskReply("refused", detail="the task is no longer wanted")
    assert not notes.exists()


def test_a_worker_that_finds_no_driver_does_nothing() -> None:
    given = TaskRequest(pack(double, 2), "token", ("127.0.0.1", 1), 1.0)
    reply = TaskReply.decode(attempt(given.encode()))
    assert reply.status == "unreachable"
    assert "127.0.0.1:1" in reply.detail


def test_a_function_that_the_worker_does_not_have() -> None:
    data = pack(double, 2).replace(b"test_worker", b"best_worker")
    reply = TaskReply.decode(attempt(TaskRequest(data, "token", None, 1.0).encode()))
    assert reply.status == "unfit"
    assert "best_worker" in reply.detail


def test_an_error_that_can_not_be_pickled_is_reported_by_its_text() -> None:
    reply = TaskReply.decode(attempt(TaskRequest(pack(raise_unpicklable, None), "token", None, 1.0).encode()))
    assert (reply.status, reply.value) == ("raised", b"")
    assert "only here" in reply.detail


def test_a_worker_that_is_long_overdue_is_ended_by_the_kernel() -> None:
    """Also one that handles no signals of Python, so that the driver can't stop it."""
    program = """
from components.compactor.spark import worker
from components.compactor.spark.messages import TaskRequest
worker._OVERDUE_S = 0.0
with worker._alarm(TaskRequest(b"", "", None, 0.0, 60.0)):
    pass
with worker._alarm(TaskRequest(b"", "", None, 0.0, 0.1)):
    while True:
        pass
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGALRM
