"""Starts a component, serves its lane, stops it; and again, if leadership is lost and won.

One call at a time over all of that: a call that ignores its cancellation is left behind, and no other is made before it
has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.lanes.calls import START_OR_STOP, SeparateCall, task_name
from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
from astha.lanes.worker import LaneWorker
from astha.subscribers.broken import BrokenComponent
from astha.subscribers.contract import Startable, Stoppable, Subscriber
from astha.subscribers.lane_policy import LanePolicy

log = structlog.get_logger(__name__)


class Lifecycle:
    def __init__(
        self, name: str, subscriber: Subscriber, policy: LanePolicy, clock: LoopClock, failures: FailureLog
    ) -> None:
        self._name = name
        self._subscriber = subscriber
        self._policy = policy
        self._clock = clock
        self._failures = failures
        self._backoff = Backoff(policy.backoff_initial_s, policy.backoff_max_s)
        self._start_or_stop = SeparateCall(task_name(name, START_OR_STOP), policy.drain_timeout_s)
        self._worker_left_behind: asyncio.Task[None] | None = None

    async def serve(self, lane: Lane, streaming: asyncio.Event) -> None:
        """Serves until cancelled. No error of the component ends it, or delays its end beyond the policy's timeouts."""
        subscriber = self._subscriber
        try:
            await streaming.wait()  # a refresh before the stream has a first position would have to be repeated
            await self._wait_for_straggler(lane)
            if isinstance(subscriber, BrokenComponent):
                lane.open_circuit(subscriber.reason)
                await asyncio.Event().wait()
            if isinstance(subscriber, Startable):
                await self._start(lane, subscriber.start)
            await LaneWorker(lane).run()
        finally:
            self._worker_left_behind = lane.calls.straggler or self._worker_left_behind
            if isinstance(subscriber, Stoppable) and self._straggler() is None:
                await self._stop(subscriber.stop)

    async def _start(self, lane: Lane, start: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        lane.start_began = self._clock.monotonic()
        while (error := await self._start_or_stop.call(start, self._policy.refresh_timeout_s)) is not None:
            failures += 1
            self._failures.note(self._name, "start", error)
            lane.open_circuit(f"start failed: {error!r}")
            await self._wait_for_straggler(lane)
            await self._clock.sleep(self._backoff.wait_s(failures, self._clock))
            lane.start_began = self._clock.monotonic()

    async def _stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        error = await self._start_or_stop.call(stop, self._policy.drain_timeout_s)
        if error is not None:
            self._failures.note(self._name, "stop", error)
            log.warning("component did not stop cleanly", component=self._name, error=repr(error))

    def _straggler(self) -> asyncio.Task[None] | asyncio.Task[BaseException | None] | None:
        """Returns the task of a call that has not returned, although it was cancelled."""
        left_behind = self._worker_left_behind
        if left_behind is not None and not left_behind.done():
            return left_behind
        return self._start_or_stop.straggler

    async def _wait_for_straggler(self, lane: Lane) -> None:
        straggler = self._straggler()
        if straggler is not None:
            lane.open_circuit("an earlier call of it ignores cancellation and has not returned")
            await asyncio.wait({straggler})
