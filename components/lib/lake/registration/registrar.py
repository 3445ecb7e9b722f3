"""`Registrar`: written files become the table's, in the background.

    async with Registrar(store, clock) as registrar:
        result = await registrar.register(registration)   # waits for room only
        ...
        files = await result                              # durable

What waits is committed together: while one group is on its way the next one gathers, and nobody waits for a timer.
A process that dies here has lost nothing that its upload intents don't tell: what was committed is registered, the rest
is found by the cleaner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
import structlog

from astha.clock import LoopClock
from components.lib.lake.registration.group_commit import GroupCommit, PendingRegistration, Retries, give_up
from registry.contract import Files
from registry.errors import Unavailable
from registry.inputs import Registration
from registry.models import TableFile

__all__ = ["RegistrarClosed", "Registrar", "RegistrarStatistics", "Result", "Retries"]

log = structlog.get_logger(__name__)

_LONGEST_REST_S = 0.5

Result: TypeAlias = "asyncio.Future[list[TableFile]]"


class RegistrarClosed(RuntimeError):
    """The registrar takes nothing any more: open another one."""


class RegistrarStatistics(msgspec.Struct):
    """Since the registrar was opened, but for what waits now."""

    registrations: int = 0  # registered
    files: int = 0  # of those
    failures: int = 0  # registrations that got an error
    groups: int = 0
    retries: int = 0
    waiting_files: int = 0  # in the queue; those on their way are not counted
    waiting_callers: int = 0  # for room in the queue


class Registrar:
    """Give it to everybody who inserts through one process: the more share it, the larger the groups.

    Order: registrations are sent in the order in which they were accepted. A caller that is cancelled while it waits
    for room has registered nothing; what was accepted is registered, whoever is cancelled. Each failure is raised
    once, where the result is awaited; asyncio reports a failed result that nobody looks at.
    """

    def __init__(
        self,
        store: Files,
        clock: LoopClock,
        *,
        sync: bool = False,
        max_waiting_files: int = 5_000,
        retries: Retries | None = None,
        pace: float = 0.0,
    ) -> None:
        """``pace`` leaves the machine to those who write files: after a group, the next one gathers for so many times
        as long as that one took. Nobody waits for it: a flush, a caller without room and `commit_now` end it.
        """
        if max_waiting_files < 1:
            raise ValueError(f"max_waiting_files = {max_waiting_files}: at least one file must be able to wait")
        self._clock = clock
        self._sync = sync
        self._max_waiting_files = max_waiting_files
        self._group_commit = GroupCommit(store, clock, retries or Retries(), self._count_retry)
        self._queue: deque[PendingRegistration] = deque()
        self._group: list[PendingRegistration] = []  # on its way
        self._callers: deque[tuple[int, asyncio.Future[None]]] = deque()  # files, and the word that there is room
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []  # answered when so many are settled
        self._accepted = 0
        self._settled = 0
        self._arrival = asyncio.Event()
        self._pace = pace
        self._rest_until = 0.0
        self._commit_requested = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._statistics = RegistrarStatistics()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(), name="registrar")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def statistics(self) -> RegistrarStatistics:
        return msgspec.structs.replace(self._statistics, waiting_callers=len(self._callers))

    async def register(
        self, registration: Registration, *, sync: bool | None = None, callback: Callable[[Result], None] | None = None
    ) -> Result:
        """Waits for room, and with ``sync`` for the result too, whose error it then raises.

        ``callback`` gets the result when it is there. A registration larger than the queue goes alone. Errors are those
        of `MetadataStore.register_files`: Unavailable means that the registration may or may not have happened
        and that the files must be left to the cleaner, any other one that it has not. Closed: it was not accepted.
        """
        await self._reserve(len(registration.files))
        if self._task is None or self._task.done():
            raise RegistrarClosed("the registrar was closed: nothing was registered")
        result: Result = asyncio.get_running_loop().create_future()
        if callback is not None:
            result.add_done_callback(callback)
        self._accepted += 1
        self._queue.append(PendingRegistration(registration, result))
        self._arrival.set()
        if self._sync if sync is None else sync:
            self.commit_now()
            await result
        return result

    def commit_now(self) -> None:
        """Somebody waits for what was accepted."""
        self._commit_requested.set()

    async def flush(self) -> None:
        """Returns when everything accepted so far has its result. Raises none of their errors."""
        if self._settled < self._accepted:
            word: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._accepted, word))
            self.commit_now()
            await word

    async def close(self, timeout_s: float = 60.0) -> None:
        """Takes nothing more, commits what was accepted, fails with Unavailable what is left after the timeout."""
        self._refuse_callers()
        self._arrival.set()
        self.commit_now()
        if self._task is None:
            return
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait({self._task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._task.cancel()
            await asyncio.gather(self._task, timer, return_exceptions=True)

    async def _reserve(self, files: int) -> None:
        """Callers are served in the order in which they came, so that a large registration is not passed for ever."""
        if self._closing or self._task is None:
            raise RegistrarClosed("the registrar is not open: nothing was registered")
        if not self._callers and self._fits(files):
            self._statistics.waiting_files += files
            return
        word: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = (files, word)
        self._callers.append(turn)
        self.commit_now()
        try:
            await word
        except asyncio.CancelledError:
            if turn in self._callers:
                self._callers.remove(turn)
            elif not word.cancelled() and word.exception() is None:  # there was room, but the caller has gone
                self._statistics.waiting_files -= files
                self._arrival.set()
            self._make_room()
            raise

    def _fits(self, files: int) -> bool:
        waiting = self._statistics.waiting_files
        return waiting == 0 or waiting + files <= self._max_waiting_files

    def _make_room(self) -> None:
        while self._callers and self._fits(self._callers[0][0]):
            files, word = self._callers.popleft()
            if not word.done():
                self._statistics.waiting_files += files
                word.set_result(None)

    def _refuse_callers(self) -> None:
        self._closing = True
        while self._callers:
            _, word = self._callers.popleft()
            if not word.done():
                word.set_exception(
                    RegistrarClosed("the registrar was closed before there was room: nothing was registered")
                )

    async def _work(self) -> None:
        try:
            while not (self._closing and not self._queue and not self._statistics.waiting_files):
                if self._queue:
                    await self._rest()
                    await self._commit_group()
                else:
                    self._arrival.clear()
                    await self._arrival.wait()
        except Exception:
            log.exception("the registrar has failed")
            raise
        finally:
            self._refuse_callers()
            self._abandon()

    async def _rest(self) -> None:
        rest = self._rest_until - self._clock.monotonic()
        if rest <= 0 or self._commit_requested.is_set():
            return
        ends = {asyncio.ensure_future(self._clock.sleep(rest)), asyncio.ensure_future(self._commit_requested.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _commit_group(self) -> None:
        started = self._clock.monotonic()
        self._group = list(self._queue)
        self._queue.clear()
        self._commit_requested.clear()
        self._statistics.waiting_files -= sum(len(entry.registration.files) for entry in self._group)
        self._statistics.groups += 1
        self._make_room()
        await self._group_commit.commit(self._group)
        self._settle(self._group)
        self._group = []
        ended = self._clock.monotonic()
        self._rest_until = ended + min(_LONGEST_REST_S, (ended - started) * self._pace)

    def _settle(self, entries: list[PendingRegistration]) -> None:
        good = [entry for entry in entries if entry.succeeded]
        self._statistics.registrations += len(good)
        self._statistics.files += sum(len(entry.registration.files) for entry in good)
        self._statistics.failures += len(entries) - len(good)
        self._settled += len(entries)
        for number, word in self._flushes:
            if number <= self._settled and not word.done():
                word.set_result(None)
        self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    def _abandon(self) -> None:
        left = [*self._group, *self._queue]
        self._group = []
        self._queue.clear()
        give_up((entry for entry in left if entry.succeeded is None), Unavailable("the registrar was closed first"))
        self._settle(left)

    def _count_retry(self) -> None:
        self._statistics.retries += 1
