"""The circuit breaker: closed, open, half-open, with a reset timeout on the daemon's monotonic clock."""

from __future__ import annotations

import asyncio

from astha.lanes.breaker import Breaker
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from tests.unit.astha.lanes.harness import LaneHarness

ERROR = RuntimeError("no")


def make(clock: ManualClock, failures: int = 3) -> Breaker:
    return Breaker("subject", failures, 10.0, clock)


def test_failures_in_a_row_open_the_circuit() -> None:
    breaker = make(ManualClock())
    assert [breaker.failed(ERROR) for _ in range(3)] == [False, False, True]
    assert (breaker.state, breaker.failures) == ("open", 3)


def test_a_success_resets_the_count() -> None:
    breaker = make(ManualClock())
    breaker.failed(ERROR)
    breaker.failed(ERROR)
    breaker.succeeded()
    assert breaker.failures == 0
    assert not breaker.failed(ERROR)


def test_any_error_counts_even_one_that_would_end_the_process() -> None:
    breaker = make(ManualClock(), failures=1)
    assert breaker.failed(SystemExit(1))


async def test_the_reset_timeout_runs_on_the_monotonic_clock() -> None:
    clock = ManualClock()
    breaker = make(clock)
    breaker.open()
    clock.jump(3_600)
    assert breaker.reset_in_s == 10.0
    await clock.advance(4)
    assert breaker.reset_in_s == 6.0
    breaker.open()
    assert breaker.reset_in_s == 10.0, "opened again: the timeout starts again"
    await clock.advance(11)
    assert breaker.reset_in_s == 0.0


def test_one_success_of_a_trial_closes_the_circuit_one_failure_opens_it_again() -> None:
    breaker = make(ManualClock())
    breaker.open()
    breaker.begin_trial()
    assert breaker.state == "half-open"
    assert breaker.failed(ERROR)
    assert breaker.state == "open"
    breaker.begin_trial()
    breaker.succeeded()
    assert (breaker.state, breaker.failures) == ("closed", 0)


def test_a_late_success_does_not_close_an_open_circuit() -> None:
    breaker = make(ManualClock())
    breaker.open()
    breaker.succeeded()
    assert breaker.state == "open"


def test_a_closed_circuit_needs_no_trial() -> None:
    breaker = make(ManualClock())
    breaker.failed(ERROR)
    breaker.begin_trial()
    assert (breaker.state, breaker.failures) == ("closed", 1)


async def test_the_refresh_is_the_trial_of_a_half_open_circuit() -> None:
    async with LaneHarness(breaker_reset_s=10.0) as harness:
        harness.lane.open_circuit("test")
        assert harness.lane.breaker.state == "open"
        harness.subject.refresh_gate = asyncio.Event()
        await harness.pass_time(10.1)
        assert (harness.lane.state, harness.lane.breaker.state) == (LaneState.RECOVERING, "half-open")
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert (harness.lane.state, harness.lane.breaker.state) == (LaneState.LIVE, "closed")


async def test_a_held_component_tries_its_first_event_half_open() -> None:
    async with LaneHarness(on_exhausted="hold", attempts=3) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(5)
        assert (harness.lane.state, harness.lane.breaker.state) == (LaneState.HELD, "open")
        harness.subject.behave()
        await harness.pass_time(60)
        assert (harness.lane.state, harness.lane.breaker.state) == (LaneState.LIVE, "closed")
        assert harness.subject.names == ["a"]
