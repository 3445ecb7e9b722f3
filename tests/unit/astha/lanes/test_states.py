"""The states of a lane and the transitions between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from astha.lanes.inspection import failure_text, lag_seconds, shown_reason, stuck_seconds
from astha.lanes.state import LaneState, RestoredLane
from astha.testing import Fault
from tests.doubles.registry import GROUPS, group
from tests.unit.astha.lanes.harness import LaneHarness
from tests.waiting import eventually


async def test_how_long_a_delivery_has_been_tried_is_known() -> None:
    async with LaneHarness(breaker_failures=1_000, backoff_max_s=2.0) as harness:
        assert stuck_seconds(harness.lane) == 0
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(10)
        harness.commit("b")
        assert harness.lane.state is LaneState.LIVE
        assert stuck_seconds(harness.lane) >= 10
        harness.subject.behave()
        await harness.pass_time(3)
        assert harness.subject.names == ["a", "b"]
        assert stuck_seconds(harness.lane) == 0


async def test_the_last_failure_is_known_until_a_call_succeeds() -> None:
    async with LaneHarness(breaker_failures=1_000, backoff_max_s=2.0, attempts=20) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(3)
        failure = harness.lane.failure
        assert failure is not None
        assert (failure.call, failure.attempts) == ("delivery", 20)
        assert failure.attempt == harness.subject.hits > 1
        assert failure.next_at > harness.clock.monotonic()
        assert failure.error in failure_text(harness.lane)
        assert failure.hint in failure_text(harness.lane)
        harness.subject.behave()
        await harness.pass_time(3)
        assert harness.lane.failure is None
        assert failure_text(harness.lane) == ""


async def test_a_full_queue_keeps_the_failure_that_filled_it_and_the_lag() -> None:
    async with LaneHarness(breaker_failures=1_000, max_events=5) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(40)
        behind_s = lag_seconds(harness.lane, harness.clock)
        assert behind_s >= 40
        for number in range(5):
            harness.commit(f"g{number}")
        assert harness.lane.state is LaneState.BROKEN
        assert harness.lane.failure is not None
        assert lag_seconds(harness.lane, harness.clock) >= behind_s
        harness.subject.behave()
        await harness.converge()
        assert harness.lane.failure is None


async def test_consecutive_failures_open_the_breaker() -> None:
    async with LaneHarness(breaker_failures=5) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(8)
        assert harness.lane.state is LaneState.BROKEN
        assert harness.subject.hits == 5
        assert not harness.lane.breaker.closed


async def test_failures_between_successes_do_not_open_the_breaker() -> None:
    async with LaneHarness(breaker_failures=3) as harness:
        for number in range(10):
            harness.subject.misbehave(Fault.FAIL, times=2)
            harness.commit(f"g{number}")
            await harness.pass_time(5)
        assert harness.lane.counts.circuit_openings == 0
        assert len(harness.subject.names) == 10


async def test_while_the_circuit_is_open_nothing_is_queued_and_the_position_does_not_count() -> None:
    async with LaneHarness() as harness:
        harness.lane.open_circuit("test")
        for number in range(1_000):
            harness.commit(f"g{number}")
        assert harness.lane.queue.events == 0
        assert not harness.lane.state.keeps_position()


async def test_a_full_queue_opens_the_circuit() -> None:
    async with LaneHarness(max_events=10) as harness:
        harness.subject.misbehave(Fault.HANG)
        for number in range(11):
            harness.commit(f"g{number}")
        assert harness.lane.state is LaneState.BROKEN
        assert "queue full: 10 events" in (harness.lane.reason or "")
        harness.subject.behave()
        await harness.converge()


async def test_a_queue_full_by_bytes_opens_the_circuit() -> None:
    async with LaneHarness(max_bytes=1_000) as harness:
        harness.subject.misbehave(Fault.HANG)
        for number in range(3):
            harness.offer(harness.registry.commit(group(f"g{number}"), size=400))
        assert harness.lane.state is LaneState.BROKEN


async def test_recovery_waits_for_the_reset_timeout_then_checks_health_then_refreshes() -> None:
    async with LaneHarness(breaker_reset_s=10.0) as harness:
        harness.lane.open_circuit("test")
        await harness.pass_time(9.9)
        await harness.reach(LaneState.BROKEN)
        assert harness.subject.refreshes == 1
        await harness.pass_time(0.2)
        assert harness.lane.state is LaneState.LIVE
        assert harness.subject.refreshes == 2
        assert harness.lane.breaker.closed


async def test_a_component_that_is_still_unhealthy_stays_broken() -> None:
    async with LaneHarness(breaker_reset_s=10.0) as harness:
        harness.subject.healthy = False
        harness.lane.open_circuit("test")
        await harness.pass_time(35)
        assert harness.lane.state is LaneState.BROKEN
        assert harness.subject.refreshes == 1
        harness.subject.healthy = True
        await harness.converge()


async def test_the_reason_of_a_failed_health_check_is_shown_and_logged_once() -> None:
    with capture_logs() as logs:
        async with LaneHarness(breaker_reset_s=10.0) as harness:
            harness.subject.healthy = False
            harness.lane.open_circuit("test")
            await harness.pass_time(35)
            assert shown_reason(harness.lane) == "test (not healthy: on_health returned False)"
            harness.subject.healthy = True
            await harness.converge()
            assert shown_reason(harness.lane) is None
    told = [(line["event"], line.get("reason")) for line in logs if "healthy" in line["event"]]
    assert told == [
        ("component is not healthy", "on_health returned False"),
        ("component is healthy again", None),
    ]


async def test_a_failed_trial_opens_the_circuit_again() -> None:
    async with LaneHarness(breaker_reset_s=10.0, breaker_failures=5) as harness:
        harness.subject.refresh_error = RuntimeError("no")
        harness.lane.open_circuit("test")
        await harness.pass_time(10.5)
        assert harness.lane.state is LaneState.BROKEN
        assert harness.lane.counts.failed_refreshes == 1, "one try: the breaker is half open"
        harness.subject.behave()
        await harness.converge()


async def _raise() -> bool:
    raise RuntimeError("ill")


async def _exit() -> bool:
    raise SystemExit(1)


async def _hang() -> bool:
    await asyncio.Event().wait()
    return True


def _answer(value: object) -> Callable[[], Awaitable[Any]]:
    async def answer() -> object:
        return value

    return answer


@pytest.mark.parametrize(
    "health",
    [_raise, _exit, _hang, *(_answer(value) for value in (False, None, 1, "yes", object()))],
    ids=["raises", "exits", "hangs", "False", "None", "1", "text", "object"],
)
async def test_anything_but_true_in_time_from_on_health_opens_the_circuit(health: Callable[[], Awaitable[Any]]) -> None:
    async with LaneHarness(health_interval_s=10.0, health_timeout_s=0.05, breaker_reset_s=1.0) as harness:
        harness.subject.health = health
        await harness.pass_time(10.1)
        await harness.reach(LaneState.BROKEN)
        assert "health" in (harness.lane.reason or "")
        harness.subject.behave()
        await eventually(lambda: _advance(harness), "recovery")
        await harness.converge()


async def _advance(harness: LaneHarness) -> bool:
    await harness.pass_time(1.1)
    return harness.lane.state is LaneState.LIVE


async def test_a_health_check_is_not_repeated_before_it_has_returned() -> None:
    asked = 0

    async def stubborn() -> bool:
        nonlocal asked
        asked += 1
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if ended:
                    raise

    ended = False
    async with LaneHarness(health_interval_s=1.0, health_timeout_s=0.01, breaker_reset_s=1.0) as harness:
        harness.subject.health = stubborn
        await harness.pass_time(1.1)
        await harness.reach(LaneState.BROKEN)
        for _ in range(5):
            await harness.pass_time(1.1)
            await asyncio.sleep(0.02)
        assert asked == 1
        ended = True


async def test_when_the_circuit_opens_the_call_in_flight_may_finish_within_the_drain_timeout() -> None:
    async with LaneHarness(drain_timeout_s=5.0, breaker_reset_s=1_000) as harness:
        gate = asyncio.Event()
        deliver = harness.subject.on_event

        async def wait(event: Any) -> None:
            await gate.wait()
            await deliver(event)

        harness.delivery._on_event = wait
        harness.commit("a", "b")
        await harness.settle()
        harness.lane.open_circuit("test")
        await harness.pass_time(4)
        gate.set()
        await harness.settle()
        assert harness.subject.names == ["a"], "what is in hand is finished, nothing new is begun"
        assert harness.lane.reason == "test"


async def test_when_the_circuit_opens_the_call_in_flight_is_cancelled_after_the_drain_timeout() -> None:
    async with LaneHarness(drain_timeout_s=5.0, delivery_timeout_s=1_000, breaker_reset_s=1.0) as harness:
        harness.subject.misbehave(Fault.HANG, times=1)
        harness.commit("a")
        await harness.settle()
        harness.lane.open_circuit("test")
        await harness.pass_time(4.5)
        assert harness.subject.inside == 1
        await harness.pass_time(1)
        assert harness.subject.inside == 0
        await harness.converge()


async def test_a_drain_deadline_does_not_apply_to_the_next_call() -> None:
    async with LaneHarness(drain_timeout_s=5.0, breaker_reset_s=1.0, refresh_timeout_s=1_000) as harness:
        fail = asyncio.Event()

        async def fail_late(event: Any) -> None:
            await fail.wait()
            raise RuntimeError("failed after all")

        harness.delivery._on_event = fail_late
        harness.commit("a")
        await harness.settle()
        harness.lane.open_circuit("test")
        fail.set()
        await harness.settle()
        harness.subject.refresh_gate = asyncio.Event()
        await harness.pass_time(60)  # far beyond the old deadline, within the refresh's own
        assert harness.lane.counts.failed_refreshes == 0
        harness.subject.refresh_gate.set()
        harness.delivery._on_event = harness.subject.on_event
        await harness.converge()


async def test_pause_and_resume() -> None:
    async with LaneHarness() as harness:
        harness.lane.pause()
        await harness.settle()
        harness.commit("a")
        await harness.pass_time(1_000)
        assert harness.lane.state is LaneState.PAUSED
        assert harness.subject.names == []
        assert harness.lane.queue.events == 0
        harness.lane.refresh("an operator asked")
        harness.lane.open_circuit("test")
        harness.lane.start_over("another history")
        assert harness.lane.state is LaneState.PAUSED, "only resume ends a pause"
        harness.lane.resume()
        await harness.converge()


async def test_a_pause_during_the_health_check_of_a_broken_component_outlasts_it() -> None:
    gate = asyncio.Event()

    async def slow() -> bool:
        await gate.wait()
        return True

    async with LaneHarness(breaker_reset_s=1.0, health_timeout_s=60.0) as harness:
        harness.subject.health = slow
        harness.lane.open_circuit("test")
        await harness.pass_time(1.1)
        harness.lane.pause()
        gate.set()
        await harness.settle()
        assert harness.lane.state is LaneState.PAUSED
        harness.subject.behave()
        harness.lane.resume()
        await harness.converge()


async def test_a_pause_during_a_refresh_outlasts_it() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.lane.pause()
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.lane.state is LaneState.PAUSED
        harness.lane.resume()
        await harness.converge()


async def test_a_circuit_opened_during_a_refresh_stays_open_after_it() -> None:
    async with LaneHarness(breaker_reset_s=100.0) as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.lane.open_circuit("test")
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.lane.state is LaneState.BROKEN
        await harness.converge()


async def test_paused_and_resumed_at_once_during_a_refresh_it_refreshes_again() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.lane.pause()
        harness.commit("meanwhile")
        harness.lane.resume()
        harness.subject.refresh_gate.set()
        await harness.converge()


async def test_an_operators_refresh_does_not_wait_for_the_breaker() -> None:
    async with LaneHarness(breaker_reset_s=1_000) as harness:
        harness.lane.open_circuit("test")
        await harness.settle()
        harness.lane.refresh("an operator asked")
        await harness.settle()
        assert harness.lane.state is LaneState.LIVE


async def test_every_change_of_state_requests_a_ledger_write() -> None:
    async with LaneHarness(breaker_reset_s=1.0) as harness:
        before = harness.changes
        harness.lane.open_circuit("test")
        assert harness.changes == before + 1
        await harness.pass_time(1.1)
        assert harness.lane.state is LaneState.LIVE
        assert harness.changes == before + 3


async def test_a_component_recovers_every_time() -> None:
    async with LaneHarness(breaker_reset_s=1.0) as harness:
        for number in range(20):
            harness.lane.open_circuit(f"for the {number}th time")
            await harness.converge()
            harness.commit(f"g{number}")
            await harness.settle()
            assert harness.subject.names[-1] == f"g{number}"
        assert harness.subject.rows[GROUPS]


@pytest.mark.parametrize("turns", range(4))
async def test_a_circuit_opened_before_the_worker_begins_does_not_stop_it(turns: int) -> None:
    harness = LaneHarness(breaker_reset_s=1.0)
    harness.lane.restore(RestoredLane(None, harness.registry.last))
    harness._tasks = [asyncio.create_task(harness.workers["subject"].run())]
    for _ in range(turns):
        await asyncio.sleep(0)
    harness.lane.open_circuit("full before it could begin")
    await harness.converge()
    await harness.__aexit__(None, None, None)


@pytest.mark.parametrize("turns", range(12))
async def test_a_recovery_that_is_interrupted_at_any_moment_completes(turns: int) -> None:
    """Interrupted after each number of event loop iterations, during awaits and between them."""
    async with LaneHarness(breaker_reset_s=1.0) as harness:
        harness.lane.refresh("test")
        for _ in range(turns):
            await asyncio.sleep(0)
        harness.lane.pause()
        for _ in range(turns % 3):
            await asyncio.sleep(0)
        harness.lane.resume()
        harness.commit("a")
        await harness.converge()
        harness.commit("b")
        await harness.settle()
        assert harness.subject.names[-1] == "b"


@pytest.mark.parametrize("turns", range(12))
async def test_a_lane_that_is_cancelled_at_any_moment_ends(turns: int) -> None:
    async with LaneHarness() as harness:
        harness.commit(*(f"g{number}" for number in range(300)))
        for _ in range(turns):
            await asyncio.sleep(0)
        harness.lane.refresh("interrupts the worker")
        harness._tasks[0].cancel()
        await asyncio.wait_for(asyncio.gather(*harness._tasks, return_exceptions=True), 10)
        assert harness.lane.calls.straggler is None
