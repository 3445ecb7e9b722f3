"""Start, serve, stop: once each, in order, and never two calls at once, over lost and won leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from astha.events import EventBatch
from astha.lanes.lifecycle import Lifecycle
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from tests.unit.astha.lanes.harness import LaneHarness, OneCallAtATime, Subject
from tests.waiting import eventually


class Whole(Subject):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.log: list[str] = []
        self.starting: Callable[[], Awaitable[None]] | None = None
        self.stopping: Callable[[], Awaitable[None]] | None = None

    async def start(self) -> None:
        with OneCallAtATime(self):
            self.log.append("start")
            if self.starting is not None:
                await self.starting()

    async def stop(self) -> None:
        with OneCallAtATime(self):
            self.log.append("stop")
            if self.stopping is not None:
                await self.stopping()


class ServedComponent:
    """A component that is served by one lane after another."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.subject = Whole(self.clock)
        self.harness = LaneHarness(self.subject, refresh_timeout_s=0.05, drain_timeout_s=0.05, breaker_reset_s=1.0)
        self.lifecycle = Lifecycle("subject", self.subject, self.harness.lane.policy, self.clock, self.harness.failures)
        self.streaming = asyncio.Event()
        self.streaming.set()
        self.task = asyncio.create_task(asyncio.sleep(0))

    def begin(self) -> None:
        lane = self.harness.make_lane("subject", self.subject, **self.harness.lane.policy.model_dump())
        self.harness.lane = lane
        self.harness.lanes[:] = [lane]
        self.harness.persist()
        self.task = asyncio.create_task(self.lifecycle.serve(lane, self.streaming))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait_for(asyncio.gather(self.task, return_exceptions=True), 10)


async def stubborn(released: asyncio.Event) -> None:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue


async def test_start_comes_first_and_stop_last() -> None:
    served = ServedComponent()
    served.begin()
    await served.harness.reach(LaneState.LIVE)
    served.harness.commit("a")
    await served.harness.settle()
    await served.end()
    assert served.subject.log == ["start", "stop"]
    assert served.subject.names == ["a"]


async def test_nothing_starts_before_the_stream_has_started() -> None:
    served = ServedComponent()
    served.streaming.clear()
    served.begin()
    await served.harness.settle()
    assert served.subject.log == []
    served.streaming.set()
    await served.harness.reach(LaneState.LIVE)
    await served.end()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), BaseException("odd"), asyncio.CancelledError()])
async def test_a_start_that_fails_is_tried_again_with_backoff(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    served = ServedComponent()
    served.subject.starting = fail
    served.begin()
    await eventually(lambda: served.harness.lane.state is LaneState.BROKEN, "a broken lane")
    assert "start failed" in (served.harness.lane.reason or "")
    await eventually(lambda: _later(served, lambda: len(served.subject.log) >= 4), "several attempts")
    served.subject.starting = None
    await eventually(lambda: _later(served, lambda: served.harness.lane.state is LaneState.LIVE), "recovery")
    await served.end()
    assert served.subject.log[-1] == "stop"


async def test_a_start_that_hangs_is_cancelled_and_tried_again() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    served = ServedComponent()
    served.subject.starting = hang
    served.begin()
    await eventually(lambda: _later(served, lambda: len(served.subject.log) >= 3), "several attempts")
    served.subject.starting = None
    await eventually(lambda: _later(served, lambda: served.harness.lane.state is LaneState.LIVE), "recovery")
    await served.end()


async def test_a_start_that_ignores_cancellation_does_not_delay_the_end() -> None:
    released = asyncio.Event()
    served = ServedComponent()
    served.subject.starting = lambda: stubborn(released)
    served.begin()
    await eventually(lambda: served.harness.lane.state is LaneState.BROKEN, "a broken lane")
    await served.end()  # in bounded time
    assert served.subject.log == ["start"], "no stop while start is in flight"
    released.set()
    await asyncio.sleep(0)


async def test_a_stop_that_never_returns_does_not_delay_the_end() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    served = ServedComponent()
    served.subject.stopping = hang
    served.begin()
    await served.harness.reach(LaneState.LIVE)
    await served.end()


async def test_after_a_change_of_leadership_no_call_is_made_before_the_last_one_has_returned() -> None:
    """Leadership lost and won again while a component ignores its cancellation: never two calls at once."""
    served = ServedComponent()
    served.begin()
    await served.harness.reach(LaneState.LIVE)
    served.subject.misbehave(Fault.STUBBORN, times=1)
    served.harness.router._lanes = served.harness.lanes
    served.harness.lane.offer(EventBatch.of([served.harness.registry.commit()]))
    served.harness.commit("a")
    await served.harness.settle()
    await served.end()
    assert served.subject.log == ["start"], "no stop either"
    served.begin()
    await eventually(lambda: served.harness.lane.state is LaneState.BROKEN, "a broken lane")
    assert "has not returned" in (served.harness.lane.reason or "")
    await served.harness.pass_time(100)
    assert served.subject.log == ["start"]
    assert served.subject.refreshes == 1
    served.subject.behave()
    await eventually(lambda: _later(served, lambda: served.harness.lane.state is LaneState.LIVE), "recovery")
    assert served.subject.log == ["start", "start"]
    await served.end()
    assert served.subject.log == ["start", "start", "stop"]


async def _later(served: ServedComponent, condition: Callable[[], bool]) -> bool:
    await served.harness.pass_time(1.1)
    return condition()
