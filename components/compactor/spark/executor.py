"""The executor on Spark: a thread for each Spark job, and a lease for each task.

Spark does not report when a cancelled task has ended. It reports the job as cancelled at once, interrupts the task's
thread in its executor, and kills the Python worker seconds later (spark.python.task.killTimeout), so files may still be
written in between. The lease tells (see `worker_lease`): a task that ends says so, and one that can't say so has ended
when its connection has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from astha.redaction import Redactor
from astha.subscribers.context import LakeSettings
from astha.tasks import to_completion
from components.compactor.merge import MergeResult, MergeTask, UnmergeableFile, inspect, merge
from components.compactor.spark import worker_daemon
from components.compactor.spark.executor_protocol import TaskProgress
from components.compactor.spark.messages import TaskRequest, pack, result_of
from components.compactor.spark.session_pool import LiveSession, OpenSession, SessionPool
from components.compactor.spark.worker import attempt
from components.compactor.spark.worker_lease import LeaseServer, TaskLease
from components.lib.spark.environment import with_lake_credentials
from components.lib.spark.errors import SessionLost, SparkError, StillWriting, TaskTimeout
from components.lib.spark.process_memory import ProcessMemory, memory_of_session
from components.lib.spark.session import Session, SparkJob, open_session
from components.lib.spark.settings import SparkSettings

T = TypeVar("T")

_GRACE_SHARE = 0.6  # of `stop_timeout_s`, for the worker to end by itself; the rest is for the driver to learn of it
_CANCEL_AGAIN_S = 0.5
_CHECK_LIMIT_S = 1.0


@dataclass(eq=False)
class RunningTask:
    task: MergeTask
    live: LiveSession
    lease: TaskLease
    job: SparkJob
    submitted: Future[bytes]
    ended: asyncio.Future[bytes]
    since: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> bool:
        """Whether a worker has had it for longer than its limit. Without a lease, counted from its submission."""
        since = self.since if self.live.lease_address is None else self.lease.held_since
        limit_s = self.task.limit_s
        return limit_s is not None and since is not None and time.monotonic() - since > limit_s


class IdleSessionLost(SessionLost):
    """The session died while it was idle, before a worker began the task. The task is submitted once more."""


def open_executor(settings: SparkSettings, lake: LakeSettings, redact: Redactor) -> SparkExecutor:
    """Returns an executor that starts its session with the first merge. ``redact`` learns the session's secrets."""
    redact.add(*settings.secrets())
    return SparkExecutor(with_lake_credentials(settings, lake), merge, partial(open_worker_session, redact=redact))


open_worker_session = partial(open_session, worker_daemon=worker_daemon.MODULE)
"""Opens a session whose local workers have the merge loaded."""


class SparkExecutor:
    """Starts no session before the first merge. ``merge`` is called in a worker, which must be able to import it."""

    def __init__(
        self,
        settings: SparkSettings,
        merge: Callable[[MergeTask], MergeResult],
        open_session: OpenSession = open_worker_session,
    ) -> None:
        self._settings = settings
        self._merge = merge
        self._leases = LeaseServer(settings.stop_timeout_s)
        self._sessions = SessionPool(settings, self._leases, open_session)
        self._threads = ThreadPoolExecutor(settings.parallel, thread_name_prefix="spark-job")
        self._running: dict[str, RunningTask] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def sessions_started(self) -> int:
        return self._sessions.started

    @property
    def ready(self) -> bool:
        return self._sessions.live is not None

    async def start(self) -> Session:
        """Starts the session before the first merge, and returns it."""
        return (await self._sessions.current()).session

    async def merge(self, task: MergeTask) -> MergeResult:
        found: MergeResult = await self._submit(self._merge, task)
        return found

    async def inspect(self, task: MergeTask) -> list[UnmergeableFile]:
        found: list[UnmergeableFile] = await self._submit(inspect, task)
        return found

    async def health(self) -> None:
        live = self._sessions.live
        if live is not None:
            await self._sessions.ping(live)
        elif self._sessions.failed:
            await self._sessions.current()

    async def close(self) -> None:
        await self._sessions.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await self._idle.wait()
        await self._leases.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sessions.release_threads()

    def progress(self) -> list[TaskProgress]:
        now = time.monotonic()
        return [
            TaskProgress(
                running.task.operation_id,
                running.task.table,
                running.task.partition_path,
                "waiting" if running.lease.holder is None else "running",
                running.lease.attempts,
                None if running.lease.holder is None else str(running.lease.holder),
                now - running.since,
            )
            for running in self._running.values()
        ]

    async def memory(self) -> ProcessMemory:
        """Returns the memory of the session's processes on this machine."""
        live = self._sessions.live
        pid = None if live is None else live.session.pid
        return ProcessMemory() if pid is None else await asyncio.to_thread(memory_of_session, pid)

    async def _submit(self, work: Callable[[MergeTask], Any], task: MergeTask) -> Any:
        try:
            return await self._submit_once(work, task)
        except IdleSessionLost:
            return await self._submit_once(work, task)

    async def _submit_once(self, work: Callable[[MergeTask], Any], task: MergeTask) -> Any:
        live = await self._sessions.current()
        lease = self._leases.issue(local=all(uri.startswith("file:") for uri in task.outputs))
        grace_s = self._settings.stop_timeout_s * _GRACE_SHARE
        request = TaskRequest(pack(work, task), lease.token, live.lease_address, grace_s, task.limit_s)
        description = f"astha {task.operation_id}: {task.table} {task.partition_path}".strip()
        job = SparkJob(f"astha-{uuid4().hex}", description, attempt, request.encode())
        submitted = self._threads.submit(live.session.run, job)
        running = RunningTask(task, live, lease, job, submitted, asyncio.wrap_future(submitted))
        running.ended.add_done_callback(_mark_retrieved)
        self._running[job.name] = running
        self._idle.clear()
        try:
            return await self._result(running)
        finally:
            del self._running[job.name]
            if not self._running:
                self._idle.set()
            self._leases.withdraw(lease)

    async def _result(self, running: RunningTask) -> Any:
        live, lease, answer = running.live, running.lease, running.ended
        try:
            waiting: set[asyncio.Future[Any]] = {answer, live.lost}
            while not (await asyncio.wait(waiting, timeout=_CHECK_LIMIT_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if running.overdue:
                    raise await self._uninterrupted(running, self._timed_out(running))
        except asyncio.CancelledError:
            if await self._uninterrupted(running, self._end(running)):
                raise
            raise _still_writing(running) from None
        failure = answer.exception() if answer.done() else SessionLost("the Spark session was lost")
        if failure is not None:
            settled = await self._uninterrupted(running, self._end(running))
            raise await self._uninterrupted(running, self._explained(running, failure, settled)) from failure
        # The worker's ``bye`` may arrive after its result.
        settled = await self._uninterrupted(running, lease.revoke(self._settings.stop_timeout_s))
        try:
            return result_of(answer.result(), lease)
        except SparkError as error:
            error.settled = settled
            raise

    async def _timed_out(self, running: RunningTask) -> SparkError:
        limit_s, holder = running.task.limit_s, running.lease.holder
        settled = await self._end(running)
        where = "" if holder is None else f" in {holder}"
        error = TaskTimeout(f"the merge took longer than {limit_s:,.0f} s{where}, and was ended")
        error.settled = settled
        return error

    async def _end(self, running: RunningTask) -> bool:
        """Returns whether the task writes nothing any more. Without a lease that is not known."""
        running.lease.revoked = True
        if running.submitted.cancel():
            return True
        cancelling = asyncio.create_task(self._cancel(running), name=f"cancel {running.job.name}")
        settled = await running.lease.revoke(self._settings.stop_timeout_s)
        await asyncio.wait([cancelling], timeout=_CANCEL_AGAIN_S)  # frees its thread, now or later
        return settled and running.live.lease_address is not None

    async def _cancel(self, running: RunningTask) -> None:
        """Repeated until Spark has dropped the job: one that is just being submitted may miss a call."""
        while not running.ended.done():
            with suppress(Exception):  # the session or the job may be gone
                await self._sessions.call(partial(running.live.session.cancel, running.job))
            await asyncio.wait([running.ended], timeout=_CANCEL_AGAIN_S)

    async def _explained(self, running: RunningTask, failure: BaseException, settled: bool) -> SparkError:
        if not isinstance(failure, Exception):
            raise failure
        error = await self._sessions.call(partial(running.live.session.explain, failure))
        if isinstance(error, SessionLost):
            self._sessions.lose(running.live)
            if settled and not running.lease.attempts:
                return IdleSessionLost(str(error))
        error.settled = settled
        return error

    async def _uninterrupted(self, running: RunningTask, work: Coroutine[None, None, T]) -> T:
        """A cancellation is raised when the work is over; `StillWriting` instead if the task is not settled then."""
        results: list[T] = []

        async def keep_result() -> T:
            results.append(await work)
            return results[0]

        try:
            return await to_completion(keep_result())
        except asyncio.CancelledError:
            result = results[0] if results else None
            if result is False or (isinstance(result, SparkError) and not result.settled):
                raise _still_writing(running) from None
            raise


def _mark_retrieved(ended: asyncio.Future[bytes]) -> None:
    """asyncio would log the error of a job whose caller has gone."""
    if not ended.cancelled():
        ended.exception()


def _still_writing(running: RunningTask) -> StillWriting:
    return StillWriting(
        f"{running.job.description}: cancelled, but it may still write: its upload intents are left to the cleaner"
    )
