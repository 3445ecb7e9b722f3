"""`Registrar`: registers written files with their tables, in the background and in groups.

    async with Registrar(store, clock) as registrar:
        result = await registrar.register(registration)   # waits for room in the queue only
        ...
        files = await result                              # durable

Registrations that arrive while one group is being committed form the next group; no timer delays them. A crash loses
nothing: what was committed is registered, and the cleaner finds the rest by its upload intents.
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
from astha.tasks import cancel_and_wait, first_of
from components.lib.lake.registration.group_commit import GroupCommit, PendingRegistration, RetryPolicy, give_up
from registry.contract import Files
from registry.errors import Unavailable
from registry.inputs import Registration
from registry.models import TableFile

__all__ = ["RegistrarClosed", "Registrar", "RegistrarStatistics", "Result", "RetryPolicy"]

log = structlog.get_logger(__name__)

_LONGEST_PAUSE_S = 0.5

Result: TypeAlias = "asyncio.Future[list[TableFile]]"


class RegistrarClosed(RuntimeError):
    """The registrar accepts no more registrations: open another one."""


class RegistrarStatistics(msgspec.Struct):
    """Totals since the registrar was opened, and two current numbers: `waiting_files` and `waiting_callers`."""

    registrations: int = 0  # registered
    files: int = 0  # of those
    failures: int = 0  # registrations that got an error
    groups: int = 0
    retries: int = 0
    waiting_files: int = 0  # in the queue, without those of the group that is being committed
    waiting_callers: int = 0  # for room in the queue


class Registrar:
    """Share one among all writers of a process: the more use it, the larger the groups.

    Registrations are sent in the order in which they were accepted. A caller that is cancelled while it waits for room
    has registered nothing; an accepted registration is carried out even if its caller is cancelled. A failure is
    raised where the result is awaited; asyncio reports a failed result that is never awaited.
    """

    def __init__(
        self,
        store: Files,
        clock: LoopClock,
        *,
        sync: bool = False,
        max_waiting_files: int = 5_000,
        retries: RetryPolicy | None = None,
        pause_factor: float = 0.0,
    ) -> None:
        """``pause_factor`` leaves the processor to the writers of files: after a group, the registrar pauses for this
        many times the group's duration. A flush, a caller that waits for room and `commit_now` end the pause.
        """
        if max_waiting_files < 1:
            raise ValueError(f"max_waiting_files = {max_waiting_files}: at least one file must be able to wait")
        self._clock = clock
        self._sync = sync
        self._max_waiting_files = max_waiting_files
        self._group_commit = GroupCommit(store, clock, retries or RetryPolicy(), self._count_retry)
        self._queue: deque[PendingRegistration] = deque()
        self._group: list[PendingRegistration] = []  # being committed
        self._callers: deque[tuple[int, asyncio.Future[None]]] = deque()  # files, and a future for the room
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []  # done when that many are settled
        self._accepted = 0
        self._settled = 0
        self._arrival = asyncio.Event()
        self._pause_factor = pause_factor
        self._paused_until = 0.0
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
        """Waits for room, and with ``sync`` also for the result, whose error it raises then.

        ``callback`` is called with the result. A registration larger than the queue is sent alone. Errors are those of
        `MetadataStore.register_files`: after Unavailable the registration may have happened, so the files must be left
        to the cleaner; after any other error it has not. Raises `RegistrarClosed` if it was not accepted.
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
        """Ends the pause between groups: a caller waits for what was accepted."""
        self._commit_requested.set()

    async def flush(self) -> None:
        """Returns when everything accepted so far has its result. Does not raise their errors."""
        if self._settled < self._accepted:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._accepted, ready))
            self.commit_now()
            await ready

    async def close(self, timeout_s: float = 60.0) -> None:
        """Accepts nothing more and commits what was accepted. What is left after the timeout fails with Unavailable."""
        self._refuse_callers()
        self._arrival.set()
        self.commit_now()
        if self._task is None:
            return
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait({self._task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(self._task, timer)

    async def _reserve(self, files: int) -> None:
        """Callers are served in order of arrival: otherwise small registrations could starve a large one."""
        if self._closing or self._task is None:
            raise RegistrarClosed("the registrar is not open: nothing was registered")
        if not self._callers and self._fits(files):
            self._statistics.waiting_files += files
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = (files, ready)
        self._callers.append(turn)
        self.commit_now()
        try:
            await ready
        except asyncio.CancelledError:
            if turn in self._callers:
                self._callers.remove(turn)
            elif not ready.cancelled() and ready.exception() is None:  # room was granted, but the caller is gone
                self._statistics.waiting_files -= files
                self._arrival.set()
            self._make_room()
            raise

    def _fits(self, files: int) -> bool:
        waiting = self._statistics.waiting_files
        return waiting == 0 or waiting + files <= self._max_waiting_files

    def _make_room(self) -> None:
        while self._callers and self._fits(self._callers[0][0]):
            files, ready = self._callers.popleft()
            if not ready.done():
                self._statistics.waiting_files += files
                ready.set_result(None)

    def _refuse_callers(self) -> None:
        self._closing = True
        while self._callers:
            _, ready = self._callers.popleft()
            if not ready.done():
                ready.set_exception(
                    RegistrarClosed("the registrar was closed before there was room: nothing was registered")
                )

    async def _work(self) -> None:
        try:
            while not (self._closing and not self._queue and not self._statistics.waiting_files):
                if self._queue:
                    await self._pause()
                    await self._commit_group()
                else:
                    self._arrival.clear()
                    await self._arrival.wait()
        except Exception:
            log.exception("registrar failed")
            raise
        finally:
            self._refuse_callers()
            self._abandon()

    async def _pause(self) -> None:
        seconds = self._paused_until - self._clock.monotonic()
        if seconds > 0 and not self._commit_requested.is_set():
            await first_of(self._clock.sleep(seconds), self._commit_requested.wait())

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
        self._paused_until = ended + min(_LONGEST_PAUSE_S, (ended - started) * self._pause_factor)

    def _settle(self, entries: list[PendingRegistration]) -> None:
        good = [entry for entry in entries if entry.succeeded]
        self._statistics.registrations += len(good)
        self._statistics.files += sum(len(entry.registration.files) for entry in good)
        self._statistics.failures += len(entries) - len(good)
        self._settled += len(entries)
        for number, ready in self._flushes:
            if number <= self._settled and not ready.done():
                ready.set_result(None)
        self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    def _abandon(self) -> None:
        left = [*self._group, *self._queue]
        self._group = []
        self._queue.clear()
        give_up((entry for entry in left if entry.succeeded is None), Unavailable("the registrar was closed first"))
        self._settle(left)

    def _count_retry(self) -> None:
        self._statistics.retries += 1
