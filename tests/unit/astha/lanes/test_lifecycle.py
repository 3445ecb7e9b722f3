"""Start, serve, stop: once each, in order, and never two calls at once, over lost and won leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from astha.events import EventBatch
from astha.lanes.lifecycle import Service
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from tests.unit.astha.lanes.harness import Bench, Subject, _Alone
from tests.waiting import eventually


class Whole(Subject):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.log: list[str] = []
        self.starting: Callable[[], Awaitable[None]] | None = None
        self.stopping: Callable[[], Awaitable[None]] | None = None

    async def start(self) -> None:
        with _Alone(self):
            self.log.append("start")
            if self.starting is not None:
                await self.starting()

    async def stop(self) -> None:
        with _Alone(self):
            self.log.append("stop")
            if self.stopping is not None:
                await self.stopping()


class Term:
    """A component served, by one lane after another."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.subject = Whole(self.clock)
        self.bench = Bench(self.subject, refresh_timeout_s=0.05, drain_timeout_s=0.05, breaker_reset_s=1.0)
        self.service = Service("subject", self.subject, self.bench.lane.policy, self.clock, self.bench.failures)
        self.streaming = asyncio.Event()
        self.streaming.set()
        self.task = asyncio.create_task(asyncio.sleep(0))

    def begin(self) -> None:
        lane = self.bench.make_lane("subject", self.subject, **self.bench.lane.policy.model_dump())
        self.bench.lane = lane
        self.bench.lanes[:] = [lane]
        self.task = asyncio.create_task(self.service.serve(lane, self.streaming))

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
    term = Term()
    term.begin()
    await term.bench.reach(LaneState.LIVE)
    term.bench.commit("a")
    await term.bench.settle()
    await term.end()
    assert term.subject.log == ["start", "stop"]
    assert term.subject.names == ["a"]


async def test_nothing_starts_before_the_stream_has_a_beginning() -> None:
    term = Term()
    term.streaming.clear()
    term.begin()
    await term.bench.settle()
    assert term.subject.log == []
    term.streaming.set()
    await term.bench.reach(LaneState.LIVE)
    await term.end()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), BaseException("odd"), asyncio.CancelledError()])
async def test_a_start_that_fails_is_tried_again_with_backoff(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    term = Term()
    term.subject.starting = fail
    term.begin()
    await eventually(lambda: term.bench.lane.state is LaneState.BROKEN, "a broken lane")
    assert "start failed" in (term.bench.lane.reason or "")
    await eventually(lambda: _later(term, lambda: len(term.subject.log) >= 4), "several attempts")
    term.subject.starting = None
    await eventually(lambda: _later(term, lambda: term.bench.lane.state is LaneState.LIVE), "recovery")
    await term.end()
    assert term.subject.log[-1] == "stop"


async def test_a_start_that_hangs_is_cancelled_and_tried_again() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    term = Term()
    term.subject.starting = hang
    term.begin()
    await eventually(lambda: _later(term, lambda: len(term.subject.log) >= 3), "several attempts")
    term.subject.starting = None
    await eventually(lambda: _later(term, lambda: term.bench.lane.state is LaneState.LIVE), "recovery")
    await term.end()


async def test_a_start_that_ignores_cancellation_is_waited_for_but_not_by_the_end() -> None:
    released = asyncio.Event()
    term = Term()
    term.subject.starting = lambda: stubborn(released)
    term.begin()
    await eventually(lambda: term.bench.lane.state is LaneState.BROKEN, "a broken lane")
    await term.end()  # in bounded time
    assert term.subject.log == ["start"], "no stop while start is under way"
    released.set()
    await asyncio.sleep(0)


async def test_a_stop_that_never_ends_does_not_hold_up_the_end() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    term = Term()
    term.subject.stopping = hang
    term.begin()
    await term.bench.reach(LaneState.LIVE)
    await term.end()


async def test_the_next_term_waits_for_a_call_of_the_last_one() -> None:
    """Leadership lost and won again while a component ignores its cancellation: never two calls at once."""
    term = Term()
    term.begin()
    await term.bench.reach(LaneState.LIVE)
    term.subject.misbehave(Fault.STUBBORN, times=1)
    term.bench.router._lanes = term.bench.lanes
    term.bench.lane.offer(EventBatch.of([term.bench.registry.commit()]))
    term.bench.commit("a")
    await term.bench.settle()
    await term.end()
    assert term.subject.log == ["start"], "no stop either"
    term.begin()
    await eventually(lambda: term.bench.lane.state is LaneState.BROKEN, "a broken lane")
    assert "has not come back" in (term.bench.lane.reason or "")
    await term.bench.pass_time(100)
    assert term.subject.log == ["start"]
    assert term.subject.refreshes == 1
    term.subject.behave()
    await eventually(lambda: _later(term, lambda: term.bench.lane.state is LaneState.LIVE), "recovery")
    assert term.subject.log == ["start", "start"]
    await term.end()
    assert term.subject.log == ["start", "start", "stop"]


async def _later(term: Term, condition: Callable[[], bool]) -> bool:
    await term.bench.pass_time(1.1)
    return condition()
