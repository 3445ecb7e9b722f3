"""The calls of one component: one at a time, each with a timeout, cancelled when it is overdue.

Deliveries and refreshes run in the lane's worker task, `start`, `stop` and `on_health` in a task of their own.

A cancellation is only a request: a component may ignore it, and may raise CancelledError by itself. So the worker notes
which cancellation is its own, and settles it whenever a call has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

import structlog

from astha.clock import LoopClock
from astha.subscribers.lane_policy import LanePolicy
from astha.tasks import cancel_and_wait

log = structlog.get_logger(__name__)

T = TypeVar("T")

WORKER, HEALTH_CHECK, START_OR_STOP = "worker", "health check", "start or stop"
COMPONENT_TASKS = (WORKER, HEALTH_CHECK, START_OR_STOP)
"""The tasks in which a component's own code runs, by the second part of their names."""


class CallTimeout(TimeoutError):
    """A call took longer than its timeout."""


def task_name(component: str, task: str) -> str:
    return f"{component}: {task}"


class Calls:
    """The calls that the lane's worker makes. Each is awaited in the worker's own task and costs no clock reading: the
    watchdog checks a few times per second whether the same call is still running.

    `check_first` makes a series of calls stop after the one in flight: the caller checks whether the next one is
    still wanted. After `ended` is set, a cancellation is raised to the worker instead of being treated as a timeout.
    """

    def __init__(self, name: str, policy: LanePolicy, clock: LoopClock) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._task_began = False  # a task that is cancelled before its first step never takes it
        self._timeout_s = policy.delivery_timeout_s  # of the call in flight
        self._drain_deadline: float | None = None  # the lane no longer wants the call in flight
        self._interrupted = False  # the cancellation in progress is our own
        self._interrupted_at = 0.0
        self.made = 0
        self.in_flight = False
        self.check_first = False
        self.ended = False

    async def call(
        self, function: Callable[[T], Awaitable[None]], argument: T, timeout_s: float
    ) -> BaseException | None:
        """Returns None if the call succeeded, otherwise its error: `CallTimeout` if it was cancelled for being overdue.

        Raises only when the worker itself is cancelled.
        """
        self._timeout_s = timeout_s
        self.made += 1
        self.in_flight = True
        try:
            await function(argument)
        except BaseException as error:
            return self.failure(error)
        finally:
            self.in_flight = False
        if self._interrupted or self._drain_deadline is not None:
            self.settle()
        return None

    async def call_each(
        self, function: Callable[[T], Awaitable[None]], arguments: Sequence[T], start: int, stop: int, timeout_s: float
    ) -> tuple[int, BaseException | None]:
        """Calls with `arguments[start:stop]` until one fails or `check_first` is set. Returns the index of the first
        argument that is not done, and the error as `call` does.
        """
        self._timeout_s = timeout_s
        index = start
        self.in_flight = True
        try:
            while index < stop and not self.check_first:
                self.made += 1
                await function(arguments[index])
                index += 1
        except BaseException as error:
            return index, self.failure(error)
        finally:
            self.in_flight = False
        return index, None

    def settle(self) -> bool:
        """Ends an interruption, even one that the call ignored. Returns whether there was one. Call it in the worker's
        task, whenever what it awaited is over.
        """
        if not self._interrupted:
            self._drain_deadline = None
            return False
        self._interrupted = False
        self._drain_deadline = None
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return True

    def failure(self, error: BaseException) -> BaseException:
        """Settles an interruption and returns the error to report for what the worker awaited. Raises a cancellation
        of the worker itself.
        """
        self.in_flight = False
        interrupted = self.settle()
        if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and self.ended):
            raise error
        if not isinstance(error, asyncio.CancelledError):
            return error
        failure: Exception = RuntimeError("the component raised CancelledError, but it was not cancelled")
        if interrupted:
            failure = CallTimeout(f"no answer within {self._timeout_s:g} s")
        failure.__cause__ = error  # shows where the call was when it was cancelled
        return failure

    # -- from outside the worker ------------------------------------------------------------------------

    def release(self) -> None:
        """The call in flight is no longer wanted: it has `drain_timeout_s` to return. With no call in flight,
        interrupts the worker now.
        """
        self.check_first = True
        if self.in_flight:
            self._drain_deadline = self._clock.monotonic() + self._policy.drain_timeout_s
        elif self._task is not None and self._task is not asyncio.current_task():
            self._interrupt()

    def _interrupt(self) -> None:
        if self._task is not None and self._task_began and not self._task.done() and not self._interrupted:
            self._interrupted = self.check_first = True
            self._interrupted_at = self._clock.monotonic()
            self._task.cancel()

    async def watch(self, may_call: Callable[[], bool], on_ignored: Callable[[str], None]) -> None:
        """Cancels calls that are overdue, until cancelled itself. `on_ignored` is called with a reason if a call does
        not return within `drain_timeout_s` after its cancellation.
        """
        drain_s = self._policy.drain_timeout_s
        call, since = 0, self._clock.monotonic()
        while True:
            await self._clock.sleep(min(0.25, min(self._policy.delivery_timeout_s, drain_s) / 4))
            now = self._clock.monotonic()
            if not may_call():
                self.check_first = True
            if self.made != call or not self.in_flight:
                call, since = self.made, now
            elif self._interrupted:
                if now > self._interrupted_at + drain_s:
                    on_ignored("it ignores cancellation and has not returned from its call")
            elif now > since + self._timeout_s or (self._drain_deadline is not None and now > self._drain_deadline):
                self._interrupt()

    # -- the worker's task ------------------------------------------------------------------------------

    async def run(self, work: Callable[[], Awaitable[None]], *monitors: Coroutine[None, None, None]) -> None:
        """Runs the worker, with the monitors beside it, until cancelled. A call in flight is cancelled then, and left
        behind if it does not return within `drain_timeout_s`. Raises what ended the worker.
        """
        task = self._task = asyncio.create_task(self._work(work), name=task_name(self._name, WORKER))
        beside = [asyncio.create_task(monitor, name=task_name(self._name, "monitor")) for monitor in monitors]
        try:
            await asyncio.wait({task})
            task.result()
        finally:
            self.ended = self.check_first = True
            await cancel_and_wait(*beside)
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self._policy.drain_timeout_s)
            if not task.done():
                log.error("component has not returned from its call; left behind", component=self._name)

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task_began = True
        await work()

    @property
    def straggler(self) -> asyncio.Task[None] | None:
        """The worker's task, if a call that ignores its cancellation has outlived the lane."""
        return self._task if self._task is not None and not self._task.done() else None


class SeparateCall:
    """A call in a task of its own. One at a time: while the last one runs, its outcome is awaited instead."""

    def __init__(self, name: str, drain_timeout_s: float = 0.0) -> None:
        self._name = name
        self._drain_timeout_s = drain_timeout_s
        self._task: asyncio.Task[BaseException | None] | None = None

    @property
    def straggler(self) -> asyncio.Task[BaseException | None] | None:
        """The task of a call that has not returned, although it was cancelled."""
        return self._task if self._task is not None and not self._task.done() else None

    async def call(self, function: Callable[[], Awaitable[None]], timeout_s: float) -> BaseException | None:
        """Returns None if the call succeeded, otherwise its error, or `CallTimeout`. A call that is overdue, or whose
        caller is cancelled, is cancelled and awaited for `drain_timeout_s` at most.
        """
        task = self.straggler
        if task is None:
            task = self._task = asyncio.create_task(_outcome(function), name=self._name)
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            overdue = not task.done()
            if overdue:
                task.cancel()
                if self._drain_timeout_s:
                    await asyncio.wait({task}, timeout=self._drain_timeout_s)
                    if not task.done():
                        log.error("call ignores cancellation; left behind", call=self._name)
        if not task.done():
            return CallTimeout(f"no answer within {timeout_s:g} s, and it ignores cancellation")
        error = task.result()
        if overdue and isinstance(error, asyncio.CancelledError):
            timeout = CallTimeout(f"no answer within {timeout_s:g} s")
            timeout.__cause__ = error
            return timeout
        return error


async def _outcome(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Returns the error as a value: SystemExit raised out of a task would end the event loop."""
    try:
        await call()
    except BaseException as error:
        return error
    return None
