"""The one Spark session: started when it is first needed, replaced when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import uuid4

import structlog

from components.compactor.spark.messages import TaskReply, TaskRequest, pack, result_of
from components.compactor.spark.worker import attempt
from components.compactor.spark.worker_lease import LeaseServer
from components.compactor.spark.worker_probe import WorkerVersions, require_same_version, worker_versions
from components.lib.spark.errors import SessionLost, SessionProblem
from components.lib.spark.network import driver_addresses
from components.lib.spark.session import Session, SparkJob
from components.lib.spark.settings import SparkSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

OpenSession: TypeAlias = Callable[[SparkSettings, str, Callable[[], None]], Session]
"""Takes the settings, this process's address for workers, and what to call when the session has ended."""

_CLOSE_S = 3.0


@dataclass(eq=False)
class LiveSession:
    """A session that was started and is not lost yet."""

    session: Session
    lost: asyncio.Future[None]
    lease_address: tuple[str, int] | None = None  # None if workers can't reach the lease server

    def lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class SessionPool:
    def __init__(self, settings: SparkSettings, leases: LeaseServer, open_session: OpenSession) -> None:
        self._settings = settings
        self._leases = leases
        self._open_session = open_session
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="spark-control")
        self._address: tuple[str, int] | None = None
        self._live: LiveSession | None = None
        self._starting: asyncio.Task[LiveSession] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self.failed = False  # whether the last start failed
        self.started = 0

    @property
    def live(self) -> LiveSession | None:
        return self._live

    async def current(self) -> LiveSession:
        """Returns the session, and starts one if there is none. A cancelled caller does not cancel the start."""
        if self._closed:
            raise SessionProblem("the executor is closed")
        if self._live is not None and not self._live.lost.done():
            return self._live
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="spark session")
            self._starting.add_done_callback(self._has_started)
        return await asyncio.shield(self._starting)

    async def ping(self, live: LiveSession) -> None:
        """Raises `SessionLost` if it does not answer in time. It is ended then, and replaced when it is needed."""
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                await self.call(live.session.ping)
        except TimeoutError as error:
            self.lose(live)
            raise SessionLost(
                f"the Spark session did not answer for {self._settings.answer_timeout_s:.0f} s"
            ) from error
        except Exception as error:
            problem = await self.call(partial(live.session.explain, error))  # may wait for the JVM's last output
            if isinstance(problem, SessionLost):
                self.lose(live)
            raise problem from error

    def lose(self, live: LiveSession) -> None:
        """Wakes the callers that wait for it, and ends it."""
        live.lose()
        if self._live is live:
            self._live = None
            self._closing = asyncio.create_task(self.call(lambda: live.session.close(_CLOSE_S)), name="spark end")

    async def close(self) -> None:
        self._closed = True
        starting, live = self._starting, self._live
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
        if live is not None:
            self.lose(live)
        if self._closing is not None:
            await self._closing

    def release_threads(self) -> None:
        """To be called when no caller needs `call` any more."""
        self._threads.shutdown(wait=False)

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _has_started(self, task: asyncio.Task[LiveSession]) -> None:
        self._starting = None
        if not task.cancelled():
            self.failed = task.exception() is not None

    async def _start(self) -> LiveSession:
        if self._closing is not None:
            await self._closing
        loop = asyncio.get_running_loop()
        bind, advertised = await self.call(partial(driver_addresses, self._settings))  # may resolve a name
        if self._address is None:
            self._address = (advertised, await self._leases.open(bind, self._settings.port))
        lost: asyncio.Future[None] = loop.create_future()

        def on_end() -> None:
            with suppress(RuntimeError):  # the loop ended before the JVM
                loop.call_soon_threadsafe(self._was_lost, lost)

        session = self._open_session(self._settings, advertised, on_end)
        live = LiveSession(session, lost, self._address)
        try:
            await self._within("no Spark session", self.call(session.start))
            await self._within("no worker took a task (has the cluster free cores?)", self._probe(live))
        except BaseException:
            await asyncio.shield(self.call(lambda: session.close(_CLOSE_S)))
            raise
        self._live = live
        self.started += 1
        log.info("spark session started", master=self._settings.address, pid=session.pid)
        return live

    def _was_lost(self, lost: asyncio.Future[None]) -> None:
        live = self._live
        if live is not None and live.lost is lost:
            log.warning("spark session lost", master=self._settings.address, pid=live.session.pid)
            self.lose(live)
        elif not lost.done():
            lost.set_result(None)

    async def _within(self, what: str, work: Coroutine[None, None, T]) -> T:
        """Raises `SessionProblem` after `start_timeout_s`. The thread is freed when the session is closed."""
        limit_s = self._settings.start_timeout_s
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if not done:
            task.cancel()
            raise SessionProblem(f"{self._settings.address}: {what} within {limit_s:.0f} s")
        return task.result()

    async def _probe(self, live: LiveSession) -> None:
        """Runs a task that checks that there is a worker, that it is fit, and that it reaches this process."""
        lease = self._leases.issue(local=True)
        try:
            for address in (live.lease_address, None):
                request = TaskRequest(pack(worker_versions, None), lease.token, address, self._settings.stop_timeout_s)
                job = SparkJob(f"astha-{uuid4().hex}", "astha: worker check", attempt, request.encode())
                try:
                    answer = await self.call(partial(live.session.run, job))
                except Exception as error:
                    raise await self.call(partial(live.session.explain, error)) from error
                reply = TaskReply.decode(answer)
                if reply.status != "unreachable" or address is None:
                    break
                live.lease_address = None
                log.warning(
                    "workers can't reach this process: outputs of cancelled tasks are left to the cleaner",
                    address=address,
                    detail=reply.detail,
                    remedy="set 'host' and 'port' of the compactor's spark settings",
                )
            worker: WorkerVersions = result_of(answer, lease)
        finally:
            self._leases.withdraw(lease)
        await self.call(partial(require_same_version, worker))
