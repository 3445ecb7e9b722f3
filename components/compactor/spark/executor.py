"""The executor on Spark: a thread for each job, and a leash for each worker.

Spark does not say when a cancelled task has ended. It calls the job over at once, interrupts the task's thread in its
executor, and kills the Python worker seconds later (spark.python.task.killTimeout, and only if the thread has not
ended before): tried, files were written for three more seconds. So the leash decides (see `worker`): a task that ends
says so itself, and one that can't is dead when its connection is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from astha.redaction import Concealment
from components.compactor.merge import BadFile, MergeResult, MergeTask, inspect
from components.compactor.spark.messages import Order, pack
from components.compactor.spark.result_mapping import read_answer
from components.compactor.spark.session_pool import Live, OpenSession, Sessions
from components.compactor.spark.worker_lease import Call, Leash
from components.lib.spark.errors import MergeTimeout, SessionLost, SparkError, StillWriting
from components.lib.spark.process_memory import Memory, memory_below
from components.lib.spark.session import Job, Session
from components.lib.spark.settings import SparkSettings

T = TypeVar("T")

_PATIENCE = 0.6  # of `stop_s`: the rest is for the news of it to arrive
_ASK_AGAIN_S = 0.5
_LOOK_S = 1.0  # between two looks at a task's deadline


class Progress(msgspec.Struct, frozen=True):
    """Of one task that was handed to Spark."""

    operation_id: str
    table: str
    partition_path: str
    state: Literal["waiting", "running"]  # for a free core, or at work
    attempts: int
    worker: str | None
    seconds: float


@dataclass(eq=False)
class Running:
    task: MergeTask
    live: Live
    call: Call
    job: Job
    begun: Future[bytes]
    ended: asyncio.Future[bytes]
    since: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> bool:
        """Whether a worker has had it for longer than it may. Without a leash, since it was handed to Spark."""
        since = self.since if self.live.leash is None else self.call.held_since
        limit_s = self.task.limit_s
        return limit_s is not None and since is not None and time.monotonic() - since > limit_s


class Lapsed(SessionLost):
    """Lost before anybody had begun: a session that died while it was idle. Worth another try without a word."""


def open_session(
    settings: SparkSettings, host: str, ended: Callable[[], None], conceal: Concealment | None = None
) -> Session:
    # Here, because each brings its own half of PySpark.
    if settings.connect:
        from components.lib.spark.connect import ConnectSession

        return ConnectSession(settings, conceal)
    from components.lib.spark.classic import ClassicSession

    return ClassicSession(settings, host, ended, conceal)


class SparkExecutor:
    """Opens nothing until the first merge. ``merge`` is what a worker calls: a function that it can import."""

    def __init__(
        self,
        settings: SparkSettings,
        merge: Callable[[MergeTask], MergeResult],
        open_session: OpenSession = open_session,
    ) -> None:
        self._settings = settings
        self._work = merge
        self._leash = Leash(settings.stop_s)
        self._sessions = Sessions(settings, self._leash, open_session)
        self._threads = ThreadPoolExecutor(settings.parallel, thread_name_prefix="spark-job")
        self._running: dict[str, Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def sessions_started(self) -> int:
        return self._sessions.started

    async def start(self) -> Session:
        """Instead of waiting for the first merge; for who wants the session itself, too."""
        return (await self._sessions.current()).session

    async def merge(self, task: MergeTask) -> MergeResult:
        """One attempt of it at a time, and none once this has returned or raised: see `Executor`."""
        found: MergeResult = await self._handed(self._work, task)
        return found

    async def inspect(self, task: MergeTask) -> list[BadFile]:
        found: list[BadFile] = await self._handed(inspect, task)
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
            async with asyncio.timeout(self._settings.stop_s):
                await self._idle.wait()
        await self._leash.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sessions.release_threads()

    def progress(self) -> list[Progress]:
        now = time.monotonic()
        return [
            Progress(
                running.task.operation_id,
                running.task.table,
                running.task.partition_path,
                "waiting" if running.call.holder is None else "running",
                running.call.attempts,
                None if running.call.holder is None else str(running.call.holder),
                now - running.since,
            )
            for running in self._running.values()
        ]

    async def memory(self) -> Memory:
        """Of this machine's part of the session."""
        live = self._sessions.live
        pid = None if live is None else live.session.pid
        return Memory() if pid is None else await asyncio.to_thread(memory_below, pid)

    async def _handed(self, work: Callable[[MergeTask], Any], task: MergeTask) -> Any:
        try:
            return await self._hand(work, task)
        except Lapsed:
            return await self._hand(work, task)

    async def _hand(self, work: Callable[[MergeTask], Any], task: MergeTask) -> Any:
        live = await self._sessions.current()
        call = self._leash.issue(local=all(uri.startswith("file:") for uri in task.outputs))
        order = Order(pack(work, task), call.token, live.leash, self._settings.stop_s * _PATIENCE, task.limit_s)
        told = f"astha {task.operation_id}: {task.table} {task.partition_path}".strip()
        job = Job(f"astha-{uuid4().hex}", told, order.sealed())
        begun = self._threads.submit(live.session.run, job)
        running = Running(task, live, call, job, begun, asyncio.wrap_future(begun))
        running.ended.add_done_callback(_seen)
        self._running[job.name] = running
        self._idle.clear()
        try:
            return await self._run(running)
        finally:
            del self._running[job.name]
            if not self._running:
                self._idle.set()
            self._leash.withdraw(call)

    async def _run(self, running: Running) -> Any:
        live, call, answer = running.live, running.call, running.ended
        try:
            waiting: set[asyncio.Future[Any]] = {answer, live.lost}
            while not (await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if running.overdue:
                    raise await self._settled(running, self._timed_out(running))
        except asyncio.CancelledError:
            if await self._settled(running, self._end(running)):
                raise
            raise _still_writing(running) from None
        failure = answer.exception() if answer.done() else SessionLost("the Spark session was lost")
        if failure is not None:
            settled = await self._settled(running, self._end(running))
            raise await self._settled(running, self._explained(running, failure, settled)) from failure
        goodbye = await self._settled(running, call.end(self._settings.stop_s))  # it may arrive after the answer
        try:
            return read_answer(answer.result(), call)
        except SparkError as error:
            error.settled = goodbye
            raise

    async def _timed_out(self, running: Running) -> SparkError:
        limit_s, holder = running.task.limit_s, running.call.holder
        settled = await self._end(running)
        where = "" if holder is None else f" in {holder}"
        error = MergeTimeout(f"it took longer than {limit_s:,.0f} s{where}, and was ended")
        error.settled = settled
        return error

    async def _end(self, running: Running) -> bool:
        """Whether nothing of it can appear any more. Without a leash nobody knows."""
        running.call.closed = True
        if running.begun.cancel():
            return True
        cancelling = asyncio.create_task(self._cancel(running), name=f"cancel {running.job.name}")
        settled = await running.call.end(self._settings.stop_s)
        await asyncio.wait([cancelling], timeout=_ASK_AGAIN_S)  # frees a thread; it is nobody's worry if not now
        return settled and running.live.leash is not None

    async def _cancel(self, running: Running) -> None:
        """Until Spark has given it up: a job that is just being handed over may miss one call."""
        while not running.ended.done():
            with suppress(Exception):  # of a session that is gone, or of a job that is
                await self._sessions.call(partial(running.live.session.cancel, running.job))
            await asyncio.wait([running.ended], timeout=_ASK_AGAIN_S)

    async def _explained(self, running: Running, failure: BaseException, settled: bool) -> SparkError:
        if not isinstance(failure, Exception):
            raise failure
        told = await self._sessions.call(partial(running.live.session.explain, failure))
        if isinstance(told, SessionLost):
            self._sessions.lose(running.live)
            if settled and not running.call.attempts:
                return Lapsed(str(told))
        told.settled = settled
        return told

    async def _settled(self, running: Running, work: Coroutine[None, None, T]) -> T:
        """Not to be cut short: a cancellation is raised when the work is over, if nothing writes any more then."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            told = task.result()
            if told is False or (isinstance(told, SparkError) and not told.settled):
                raise _still_writing(running) from None
            raise


def _seen(ended: asyncio.Future[bytes]) -> None:
    """The error of a job that nobody waits for any more is no news."""
    if not ended.cancelled():
        ended.exception()


def _still_writing(running: Running) -> StillWriting:
    return StillWriting(
        f"{running.job.told}: cancelled, but something of it may still be written: its intents are the cleaner's"
    )
