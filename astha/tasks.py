"""Tasks: waiting for the first of several, work that must not be cut short, and supervised background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, TypeVar

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock

log = structlog.get_logger(__name__)

T = TypeVar("T")

_RESTART = Backoff(initial_s=1.0, max_s=60.0)


async def first_of(*work: Awaitable[Any]) -> None:
    """Waits until one of them is done, then cancels the others and waits for them. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(some) for some in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)
    for task in done:
        task.result()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels them and returns when all have ended, whatever they raise.

    A cancellation of the caller is raised only then: a task that is left behind goes on with what it holds.
    """
    for task in tasks:
        task.cancel()
    cancelled = await _settle(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as retrieved
    if cancelled is not None:
        raise cancelled


def raise_if_cancelled() -> None:
    """Raises a cancellation of the current task that a driver has swallowed. psycopg raises the server's error if a
    statement that fails is cancelled; before Python 3.12 `asyncio.wait_for`, and so aiomqtt, returns a result that
    arrives together with the cancellation. For loops that go on after a call of a driver.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def to_completion(work: Awaitable[T], on_cancel: Callable[[], None] | None = None) -> T:
    """Runs work that must not be cut short. A cancellation is raised when the work is over; an error of the work takes
    precedence. `on_cancel` is called once, at the first cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if on_cancel is not None and not task.done():
            on_cancel()
        await _settle(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise


async def _settle(*tasks: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits for all of them, however often the caller is cancelled. Returns the last cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


class BackgroundTasks:
    """The background tasks of one owner, by key. None ends unnoticed: errors are logged, and loops are restarted."""

    def __init__(self, owner: str, clock: LoopClock) -> None:
        self._owner = owner
        self._clock = clock
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._failing: dict[str, str] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: Hashable, work: Coroutine[Any, Any, None]) -> bool:
        """Starts it unless a task of that key is running. Returns whether it was started."""
        if key in self._tasks:
            work.close()
            return False
        task = asyncio.create_task(work, name=f"{self._owner}: {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return True

    def supervise(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Starts a loop that is to run until `stop`. One that fails or ends is started again, with backoff."""
        return self.start(name, self._supervised(name, loop))

    def failing(self) -> dict[str, str]:
        """Returns the loops that failed and wait for their restart, with the reason. Empty when all is well."""
        return dict(self._failing)

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks.values())
        self._failing.clear()

    async def _supervised(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                await loop()
                reason = "ended unexpectedly"
            except Exception as error:
                log.exception("background task failed", owner=self._owner, task=name)
                reason = repr(error)
            if self._clock.monotonic() - began > _RESTART.max_s:
                failures = 0
            failures += 1
            self._failing[name] = reason
            wait_s = _RESTART.wait_s(failures, self._clock)
            log.warning(
                "background task will be restarted",
                owner=self._owner,
                task=name,
                reason=reason,
                wait_s=round(wait_s, 3),
            )
            await self._clock.sleep(wait_s)
            self._failing.pop(name, None)

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", owner=self._owner, task=task.get_name(), error=repr(error))
