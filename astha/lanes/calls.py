"""The one task that calls a component, and the call that it is in: cancelled when it is overdue, waited for in the end.

A cancellation is only a request, which a component may ignore, and a component may raise CancelledError by itself. So
the worker notes which cancellation is its own, and settles it whenever a call has come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from astha.clock import LoopClock
from astha.lanes.delivery import CallTimeout, Delivery
from astha.subscribers.lane_policy import LanePolicy

log = structlog.get_logger(__name__)


class Calls:
    def __init__(self, name: str, policy: LanePolicy, clock: LoopClock) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._delivery: Delivery | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = False  # a task cancelled before its first step never takes it
        self.refresh_began: float | None = None
        self._hurry: float | None = None  # nobody waits for this call any more: when it has to be over
        self._cancelled_at: float | None = None
        self._ours = False  # the cancellation under way is our own
        self.over = False  # only the end of the lane cancels its worker for good

    def serve(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def delivery(self) -> Delivery:
        assert self._delivery is not None  # noqa: S101  (the lane has made both)
        return self._delivery

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        self._task = asyncio.create_task(work, name=f"{self._name}: worker")
        return self._task

    def begun(self) -> None:
        self._begun = True

    @property
    def calling(self) -> bool:
        return self.delivery.calling or self.refresh_began is not None

    @property
    def interrupted(self) -> bool:
        """Something is to be settled by `returned`, even if the call itself never noticed."""
        return self._ours or self._hurry is not None

    @property
    def straggler(self) -> asyncio.Task[None] | None:
        """The task, if a call that ignores its cancellation has outlived the lane."""
        return self._task if self._task is not None and not self._task.done() else None

    def refreshing(self, under_way: bool) -> None:
        self.refresh_began = self._clock.monotonic() if under_way else None

    def leave(self) -> None:
        """Nobody waits for the call under way any more: it has `drain_timeout_s` to come back. If there is none, let
        the task look up.
        """
        self.delivery.halted = True
        if self.calling:
            self._hurry = self._clock.monotonic() + self._policy.drain_timeout_s
        elif self._task is not None and self._task is not asyncio.current_task():
            self.interrupt()

    def interrupt(self) -> None:
        if self._task is not None and self._begun and not self._task.done() and not self._ours:
            self._ours = self.delivery.halted = True
            self._cancelled_at = self._clock.monotonic()
            self._task.cancel()

    def returned(self, error: BaseException | None) -> BaseException | None:
        """By the task itself: whatever it waited for is over. Settles an interruption of ours, even one that was
        ignored, and tells it from a cancellation from outside, which is raised.
        """
        ours, self._ours = self._ours, False
        self._cancelled_at = self._hurry = None
        task = asyncio.current_task()
        if ours and task is not None:
            task.uncancel()
        if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and self.over):
            raise error
        if not isinstance(error, asyncio.CancelledError):
            return error
        if not ours:
            return RuntimeError("the component raised CancelledError although nobody had cancelled it")
        refreshing = self.refresh_began is not None
        limit = self._policy.refresh_timeout_s if refreshing else self._policy.delivery_timeout_s
        return CallTimeout(f"no answer within {limit:g} s")

    async def watch(self, may_deliver: Callable[[], bool], open_circuit: Callable[[str], None]) -> None:
        """Cancels what is overdue, and says so if that is ignored."""
        delivery, limits = self.delivery, (self._policy.delivery_timeout_s, self._policy.drain_timeout_s)
        call, since = 0, self._clock.monotonic()
        while True:
            await self._clock.sleep(min(0.25, min(limits) / 4))
            now = self._clock.monotonic()
            if not may_deliver():
                delivery.halted = True
            if delivery.calls != call or not delivery.calling:
                call, since = delivery.calls, now
                if self.refresh_began is None:
                    continue
            if self._cancelled_at is not None:
                if now > self._cancelled_at + self._policy.drain_timeout_s:
                    open_circuit("it ignores cancellation and has not come back from its call")
            elif self._overdue(now, since):
                self.interrupt()

    def _overdue(self, now: float, since: float) -> bool:
        if self._hurry is not None and now > self._hurry:
            return True
        if self.refresh_began is not None:
            return now > self.refresh_began + self._policy.refresh_timeout_s
        return now > since + self._policy.delivery_timeout_s

    async def stop(self) -> None:
        """For good; a call that does not come back within `drain_timeout_s` is left behind."""
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        _, pending = await asyncio.wait({self._task}, timeout=self._policy.drain_timeout_s)
        if pending:
            log.error("component has not come back from its call; left behind", component=self._name)
