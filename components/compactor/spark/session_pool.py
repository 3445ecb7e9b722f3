"""The one session: started when it is first needed, replaced when it is lost, ended with the rest."""

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

from components.compactor.spark.messages import Order, Outcome, pack
from components.compactor.spark.result_mapping import read_answer
from components.compactor.spark.worker_lease import Leash, addresses
from components.compactor.spark.worker_probe import Fitness, check_fitness, describe
from components.lib.spark.errors import SessionLost, SessionProblem
from components.lib.spark.session import Job, Session
from components.lib.spark.settings import SparkSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

OpenSession: TypeAlias = Callable[[SparkSettings, str, Callable[[], None]], Session]
"""Of the settings, the address at which this process is reached, and what to call when the session has ended."""

_CLOSE_S = 3.0


@dataclass(eq=False)
class Live:
    """A session that was started, until it is lost."""

    session: Session
    lost: asyncio.Future[None]
    leash: tuple[str, int] | None = None  # None if workers can't reach it

    def lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class Sessions:
    def __init__(self, settings: SparkSettings, leash: Leash, open_session: OpenSession) -> None:
        self._settings = settings
        self._leash = leash
        self._open_session = open_session
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="spark-control")
        self._address: tuple[str, int] | None = None
        self._live: Live | None = None
        self._starting: asyncio.Task[Live] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self.failed = False  # the last attempt to start one
        self.started = 0

    @property
    def live(self) -> Live | None:
        return self._live

    async def current(self) -> Live:
        """Waits for one that starts. Who is cancelled meanwhile leaves it starting."""
        if self._closed:
            raise SessionProblem("the executor is closed")
        if self._live is not None and not self._live.lost.done():
            return self._live
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="spark session")
            self._starting.add_done_callback(self._has_started)
        return await asyncio.shield(self._starting)

    async def ping(self, live: Live) -> None:
        """SessionLost if it does not answer in time: it is ended, and replaced when it is needed again."""
        try:
            async with asyncio.timeout(self._settings.answer_s):
                await self.call(live.session.ping)
        except TimeoutError as error:
            self.lose(live)
            raise SessionLost(f"the Spark session did not answer for {self._settings.answer_s:.0f} s") from error
        except Exception as error:
            told = await self.call(partial(live.session.explain, error))  # it may wait for the JVM's last words
            if isinstance(told, SessionLost):
                self.lose(live)
            raise told from error

    def lose(self, live: Live) -> None:
        """What runs in it is woken, and it is ended for good."""
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
        """When nobody has a question about the last session any more."""
        self._threads.shutdown(wait=False)

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _has_started(self, task: asyncio.Task[Live]) -> None:
        self._starting = None
        if not task.cancelled():
            self.failed = task.exception() is not None

    async def _start(self) -> Live:
        if self._closing is not None:
            await self._closing
        loop = asyncio.get_running_loop()
        bound, told = await self.call(partial(addresses, self._settings))  # it may ask a name server
        if self._address is None:
            self._address = (told, await self._leash.open(bound, self._settings.port))
        lost: asyncio.Future[None] = loop.create_future()

        def ended() -> None:
            with suppress(RuntimeError):  # the loop has ended before the JVM
                loop.call_soon_threadsafe(self._was_lost, lost)

        session = self._open_session(self._settings, told, ended)
        live = Live(session, lost, self._address)
        try:
            await self._within("no Spark session", self.call(session.start))
            await self._within("no worker took a task (has the cluster free cores?)", self._probe(live))
        except BaseException:
            await asyncio.shield(self.call(lambda: session.close(_CLOSE_S)))
            raise
        self._live = live
        self.started += 1
        log.info("spark session started", master=self._settings.place, pid=session.pid)
        return live

    def _was_lost(self, lost: asyncio.Future[None]) -> None:
        live = self._live
        if live is not None and live.lost is lost:
            log.warning("spark session lost", master=self._settings.place, pid=live.session.pid)
            self.lose(live)
        elif not lost.done():
            lost.set_result(None)

    async def _within(self, what: str, work: Coroutine[None, None, T]) -> T:
        """SessionProblem if it takes longer than a start may. The thread is freed when the session is closed."""
        limit_s = self._settings.start_s
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if not done:
            task.cancel()
            raise SessionProblem(f"{self._settings.place}: {what} within {limit_s:.0f} s")
        return task.result()

    async def _probe(self, live: Live) -> None:
        """One task that does nothing: is there a worker, does it have what it needs, does it reach us?"""
        call = self._leash.issue(local=True)
        try:
            for leash in (live.leash, None):
                order = Order(pack(describe, None), call.token, leash, self._settings.stop_s)
                job = Job(f"astha-{uuid4().hex}", "astha: is a worker there?", order.sealed())
                try:
                    answer = await self.call(partial(live.session.run, job))
                except Exception as error:
                    raise await self.call(partial(live.session.explain, error)) from error
                outcome = Outcome.opened(answer)
                if outcome.end != "unreachable" or leash is None:
                    break
                live.leash = None
                log.warning(
                    "workers can't reach this process: what a cancelled task has written is left to the cleaner",
                    address=leash, told=outcome.told, way_out="set 'host' and 'port' of the compactor's spark settings",
                )  # fmt: skip
            worker: Fitness = read_answer(answer, call)
        finally:
            self._leash.withdraw(call)
        await self.call(partial(check_fitness, worker))
