"""A component's life context its lane: start, serve, stop; and again, if leadership is lost and won.

One call at a time, over all of it: what ignores its cancellation is left behind, and nothing else is called before it
has come back. Deliveries and refreshes are the lane's own business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from astha.clock import LoopClock
from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
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
        self._straggler: asyncio.Task[None] | asyncio.Task[BaseException | None] | None = None

    async def serve(self, lane: Lane, streaming: asyncio.Event) -> None:
        """Until cancelled. Nothing that the component does ends it, or makes it last longer than its policy allows."""
        subscriber = self._subscriber
        try:
            await streaming.wait()  # a refresh before the stream has a beginning would have to be repeated
            await self._wait_for_straggler(lane)
            if isinstance(subscriber, BrokenComponent):
                lane.open_circuit(subscriber.reason)
                await asyncio.Event().wait()
            if isinstance(subscriber, Startable):
                await self._start(lane, subscriber.start)
            await lane.run()
        finally:
            self._straggler = lane.straggler or self._straggler
            if isinstance(subscriber, Stoppable) and (self._straggler is None or self._straggler.done()):
                error = await self._call(subscriber.stop, self._policy.drain_timeout_s)
                if error is not None:
                    self._failures.note(self._name, "stop", error)
                    log.warning("component did not stop cleanly", component=self._name, error=repr(error))

    async def _start(self, lane: Lane, start: Callable[[], Awaitable[None]]) -> None:
        wait = self._policy.backoff_initial_s
        lane.start_began = self._clock.monotonic()
        while (error := await self._call(start, self._policy.refresh_timeout_s)) is not None:
            self._failures.note(self._name, "start", error)
            lane.open_circuit(f"start failed: {error!r}")
            await self._wait_for_straggler(lane)
            await self._clock.sleep(wait)
            lane.start_began = self._clock.monotonic()
            wait = min(wait * 2, self._policy.backoff_max_s)

    async def _call(self, call: Callable[[], Awaitable[None]], limit_s: float) -> BaseException | None:
        """What it raised, or a TimeoutError. Cancelled when its time is up, or ours is; waited for no longer than that
        may take.
        """
        task = asyncio.create_task(_outcome(call), name=f"{self._name}: start or stop")
        try:
            await asyncio.wait({task}, timeout=limit_s)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self._policy.drain_timeout_s)
                if not task.done():
                    self._straggler = task
                    log.error("component ignores cancellation; left behind", component=self._name)
        if not task.done():
            return TimeoutError(f"no end within {limit_s:g} s, and it ignores cancellation")
        error = task.result()
        if isinstance(error, asyncio.CancelledError):
            overdue = TimeoutError(f"no end within {limit_s:g} s")
            overdue.__cause__ = error
            return overdue
        return error

    async def _wait_for_straggler(self, lane: Lane) -> None:
        straggler, self._straggler = self._straggler, None
        if straggler is not None and not straggler.done():
            lane.open_circuit("an earlier call of it ignores cancellation and has not come back")
            try:
                await asyncio.wait({straggler})
            finally:
                self._straggler = straggler


async def _outcome(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    """As a value: SystemExit raised out of a task would end the event loop."""
    try:
        await call()
    except BaseException as error:
        return error
    return None
