"""One traceback for each distinct failure of a component, with its name and the call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from astha.events import Event
from astha.lanes.failures import FailureLog
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from registry.contract import ConsistentRead
from registry.models import Row
from tests.unit.astha.lanes.harness import LaneHarness, Subject
from tests.unit.astha.lanes.test_lifecycle import ServedComponent
from tests.waiting import eventually


def tracebacks(lines: list[EventDict]) -> list[EventDict]:
    return [line for line in lines if line["event"] == "component failed"]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def raised_elsewhere(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Buggy(Subject):
    async def on_event(self, event: Event[Row]) -> None:
        self._helper()

    def _helper(self) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_delivery_that_fails_thirty_times_has_one_traceback() -> None:
    with capture_logs() as lines:
        async with LaneHarness(Buggy(ManualClock()), breaker_failures=1_000) as harness:
            harness.commit("a")
            await harness.pass_time(1_000)
            assert harness.lane.counts.dropped == 1
    (line,) = tracebacks(lines)
    assert (line["component"], line["call"], line["log_level"]) == ("subject", "on_event", "error")
    kind, _, trace = line["exc_info"]
    assert kind is ZeroDivisionError
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_code.co_name == "_helper", "the traceback reaches the component's own line"


async def test_a_call_that_takes_too_long_shows_where_it_was() -> None:
    with capture_logs() as lines:
        async with LaneHarness(delivery_timeout_s=1.0, breaker_failures=1_000) as harness:
            harness.subject.misbehave(Fault.HANG, times=1)
            harness.commit("a")
            await harness.pass_time(10)
            assert harness.subject.names == ["a"]
    (line,) = tracebacks(lines)
    _, error, _ = line["exc_info"]
    assert "no answer within 1 s" in str(error)
    assert isinstance(error.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("call", ["on_refresh", "on_health"])
async def test_failed_refreshes_and_health_checks_have_a_traceback(call: str) -> None:
    async def sick() -> Any:
        raise LookupError("no")

    with capture_logs() as lines:
        async with LaneHarness(health_interval_s=1.0, breaker_reset_s=1.0) as harness:
            if call == "on_refresh":
                harness.subject.refresh_error = LookupError("no")
                harness.lane.refresh("for the test")
            else:
                harness.subject.health = sick
            await harness.pass_time(20)
            harness.subject.behave()
            await harness.converge()
    (line,) = tracebacks(lines)
    assert (line["component"], line["call"]) == ("subject", call)
    assert line["exc_info"][0] is LookupError


@pytest.mark.parametrize("call", ["start", "stop"])
async def test_failed_starts_and_stops_have_a_traceback(call: str) -> None:
    async def fail() -> None:
        raise LookupError("no")

    with capture_logs() as lines:
        served = ServedComponent()
        setattr(served.subject, "starting" if call == "start" else "stopping", fail)
        served.begin()
        wanted = LaneState.BROKEN if call == "start" else LaneState.LIVE
        await eventually(lambda: served.harness.lane.state is wanted, str(wanted))
        await served.end()
    found = tracebacks(lines)
    assert {(line["component"], line["call"]) for line in found} >= {("subject", call)}
    assert found[0]["exc_info"][0] is LookupError


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (lambda: ("a", raised(ValueError("2"))), 1),  # type and line are the same
        (lambda: ("a", raised(TypeError("1"))), 2),
        (lambda: ("a", raised_elsewhere(ValueError("1"))), 2),
        (lambda: ("b", raised(ValueError("1"))), 2),
    ],
)
def test_which_failures_are_distinct(other: Callable[[], tuple[str, BaseException]], shown: int) -> None:
    failures = FailureLog(ManualClock())
    with capture_logs() as lines:
        failures.note("a", "on_event", raised(ValueError("1")))
        component, error = other()
        failures.note(component, "on_event", error)
    assert len(tracebacks(lines)) == shown


async def test_a_failure_is_logged_again_after_an_hour_with_its_repetitions() -> None:
    clock = ManualClock()
    failures = FailureLog(clock)
    with capture_logs() as lines:
        for _ in range(5):
            failures.note("a", "on_event", raised(ValueError("1")))
        await clock.advance(3_601)
        failures.note("a", "on_event", raised(ValueError("1")))
    assert [line["repeated"] for line in tracebacks(lines)] == [0, 4]


async def test_a_component_that_fails_differently_each_time_can_not_fill_the_log() -> None:
    clock = ManualClock()
    failures = FailureLog(clock)
    kinds = [type(f"Odd{number}", (Exception,), {}) for number in range(1_000)]
    with capture_logs() as lines:
        for kind in kinds:
            failures.note("a", "on_event", raised(kind("x")))
        failures.note("b", "on_event", raised(ValueError("another component is not limited by it")))
        await clock.advance(61)
        failures.note("a", "on_event", raised(kinds[-1]("x")))
    assert [line["component"] for line in tracebacks(lines)] == ["a"] * 10 + ["b", "a"]


class Refreshing(Subject):
    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        raise SystemExit(3)


async def test_a_component_that_tries_to_end_the_daemon_is_named() -> None:
    with capture_logs() as lines:
        harness = LaneHarness(Refreshing(ManualClock()), breaker_failures=1)
        task = asyncio.create_task(harness.workers["subject"].run())
        await harness.reach(LaneState.BROKEN)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [line["exc_info"][0] for line in tracebacks(lines)] == [SystemExit]
