"""bootstrapping, live, broken, recovering, paused: who gets where, by whom, and how back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from astha.lanes.state import LaneState
from astha.testing import Fault
from tests.doubles.registry import GROUPS, group
from tests.unit.astha.lanes.harness import Bench
from tests.waiting import eventually


async def test_how_long_a_delivery_has_been_tried_is_known() -> None:
    async with Bench(breaker_failures=1_000, backoff_max_s=2.0) as bench:
        assert bench.lane.stuck_s == 0
        bench.subject.misbehave(Fault.FAIL)
        bench.commit("a")
        await bench.pass_time(10)
        bench.commit("b")
        assert bench.lane.state is LaneState.LIVE
        assert bench.lane.stuck_s >= 10
        bench.subject.behave()
        await bench.pass_time(3)
        assert bench.subject.names == ["a", "b"]
        assert bench.lane.stuck_s == 0


async def test_consecutive_failures_open_the_breaker() -> None:
    async with Bench(breaker_failures=5) as bench:
        bench.subject.misbehave(Fault.FAIL)
        bench.commit("a")
        await bench.pass_time(8)
        assert bench.lane.state is LaneState.BROKEN
        assert bench.subject.hits == 5
        assert not bench.lane.breaker.closed


async def test_failures_between_successes_do_not() -> None:
    async with Bench(breaker_failures=3) as bench:
        for number in range(10):
            bench.subject.misbehave(Fault.FAIL, times=2)
            bench.commit(f"g{number}")
            await bench.pass_time(5)
        assert bench.lane.counts.broken == 0
        assert len(bench.subject.names) == 10


async def test_while_broken_nothing_is_kept_and_the_position_does_not_count() -> None:
    async with Bench() as bench:
        bench.lane.break_out("test")
        for number in range(1_000):
            bench.commit(f"g{number}")
        assert bench.lane.queue.events == 0
        assert bench.lane.owes_refresh


async def test_a_full_lane_breaks_out() -> None:
    async with Bench(max_events=10) as bench:
        bench.subject.misbehave(Fault.HANG)
        for number in range(11):
            bench.commit(f"g{number}")
        assert bench.lane.state is LaneState.BROKEN
        assert "fell behind: 10 events" in (bench.lane.reason or "")
        bench.subject.behave()
        await bench.converge()


async def test_bytes_count_as_well() -> None:
    async with Bench(max_bytes=1_000) as bench:
        bench.subject.misbehave(Fault.HANG)
        for number in range(3):
            bench.offer(bench.registry.commit(group(f"g{number}"), size=400))
        assert bench.lane.state is LaneState.BROKEN


async def test_recovery_waits_for_the_breaker_then_asks_then_refreshes() -> None:
    async with Bench(breaker_reset_s=10.0) as bench:
        bench.lane.break_out("test")
        await bench.pass_time(9.9)
        await bench.reach(LaneState.BROKEN)
        assert bench.subject.refreshes == 1
        await bench.pass_time(0.2)
        assert bench.lane.state is LaneState.LIVE
        assert bench.subject.refreshes == 2
        assert bench.lane.breaker.closed


async def test_a_component_that_is_still_unhealthy_stays_broken() -> None:
    async with Bench(breaker_reset_s=10.0) as bench:
        bench.subject.healthy = False
        bench.lane.break_out("test")
        await bench.pass_time(35)
        assert bench.lane.state is LaneState.BROKEN
        assert bench.subject.refreshes == 1
        bench.subject.healthy = True
        await bench.converge()


async def test_a_component_that_is_healthy_but_fails_at_once_is_left_alone_again() -> None:
    async with Bench(breaker_reset_s=10.0, breaker_failures=5) as bench:
        bench.subject.refresh_error = RuntimeError("no")
        bench.lane.break_out("test")
        await bench.pass_time(10.5)
        assert bench.lane.state is LaneState.BROKEN
        assert bench.lane.counts.failed_refreshes == 1, "one try: the breaker is half open"
        bench.subject.behave()
        await bench.converge()


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
async def test_anything_but_a_plain_true_in_time_breaks_it(health: Callable[[], Awaitable[Any]]) -> None:
    async with Bench(health_interval_s=10.0, health_timeout_s=0.05, breaker_reset_s=1.0) as bench:
        bench.subject.health = health
        await bench.pass_time(10.1)
        await bench.reach(LaneState.BROKEN)
        assert "health" in (bench.lane.reason or "")
        bench.subject.behave()
        await eventually(lambda: _advance(bench), "recovery")
        await bench.converge()


async def _advance(bench: Bench) -> bool:
    await bench.pass_time(1.1)
    return bench.lane.state is LaneState.LIVE


async def test_a_component_is_not_asked_again_before_it_has_answered() -> None:
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
    async with Bench(health_interval_s=1.0, health_timeout_s=0.01, breaker_reset_s=1.0) as bench:
        bench.subject.health = stubborn
        await bench.pass_time(1.1)
        await bench.reach(LaneState.BROKEN)
        for _ in range(5):
            await bench.pass_time(1.1)
            await asyncio.sleep(0.02)
        assert asked == 1
        ended = True


async def test_broken_in_the_middle_of_a_call_it_may_finish_within_the_drain_timeout() -> None:
    async with Bench(drain_timeout_s=5.0, breaker_reset_s=1_000) as bench:
        gate = asyncio.Event()
        deliver = bench.subject.on_event

        async def wait(event: Any) -> None:
            await gate.wait()
            await deliver(event)

        bench.lane._delivery._on_event = wait
        bench.commit("a", "b")
        await bench.settle()
        bench.lane.break_out("test")
        await bench.pass_time(4)
        gate.set()
        await bench.settle()
        assert bench.subject.names == ["a"], "what is in hand is finished, nothing new is begun"
        assert bench.lane.reason == "test"


async def test_after_the_drain_timeout_it_is_cancelled() -> None:
    async with Bench(drain_timeout_s=5.0, delivery_timeout_s=1_000, breaker_reset_s=1.0) as bench:
        bench.subject.misbehave(Fault.HANG, times=1)
        bench.commit("a")
        await bench.settle()
        bench.lane.break_out("test")
        await bench.pass_time(4.5)
        assert bench.subject.inside == 1
        await bench.pass_time(1)
        assert bench.subject.inside == 0
        await bench.converge()


async def test_a_call_that_fails_while_being_hurried_does_not_hurry_the_next() -> None:
    async with Bench(drain_timeout_s=5.0, breaker_reset_s=1.0, refresh_timeout_s=1_000) as bench:
        fail = asyncio.Event()

        async def fail_late(event: Any) -> None:
            await fail.wait()
            raise RuntimeError("failed after all")

        bench.lane._delivery._on_event = fail_late
        bench.commit("a")
        await bench.settle()
        bench.lane.break_out("test")
        fail.set()
        await bench.settle()
        bench.subject.refresh_gate = asyncio.Event()
        await bench.pass_time(60)  # far beyond the old deadline, within the refresh's own
        assert bench.lane.counts.failed_refreshes == 0
        bench.subject.refresh_gate.set()
        bench.lane._delivery._on_event = bench.subject.on_event
        await bench.converge()


async def test_pause_and_resume() -> None:
    async with Bench() as bench:
        bench.lane.pause()
        await bench.settle()
        bench.commit("a")
        await bench.pass_time(1_000)
        assert bench.lane.state is LaneState.PAUSED
        assert bench.subject.names == []
        assert bench.lane.queue.events == 0
        bench.lane.refresh("an operator asked")
        bench.lane.break_out("test")
        bench.lane.start_over("another history")
        assert bench.lane.state is LaneState.PAUSED, "only resume ends a pause"
        bench.lane.resume()
        await bench.converge()


async def test_a_pause_during_a_refresh_outlasts_it() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.lane.pause()
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.lane.state is LaneState.PAUSED
        bench.lane.resume()
        await bench.converge()


async def test_a_break_out_during_a_refresh_outlasts_it() -> None:
    async with Bench(breaker_reset_s=100.0) as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.lane.break_out("test")
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.lane.state is LaneState.BROKEN
        await bench.converge()


async def test_paused_and_resumed_at_once_during_a_refresh_it_refreshes_again() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.lane.pause()
        bench.commit("meanwhile")
        bench.lane.resume()
        bench.subject.refresh_gate.set()
        await bench.converge()


async def test_an_operators_refresh_does_not_wait_for_the_breaker() -> None:
    async with Bench(breaker_reset_s=1_000) as bench:
        bench.lane.break_out("test")
        await bench.settle()
        bench.lane.refresh("an operator asked")
        await bench.settle()
        assert bench.lane.state is LaneState.LIVE


async def test_every_change_of_state_asks_for_the_ledger() -> None:
    async with Bench(breaker_reset_s=1.0) as bench:
        before = bench.changes
        bench.lane.break_out("test")
        assert bench.changes == before + 1
        await bench.pass_time(1.1)
        assert bench.lane.state is LaneState.LIVE
        assert bench.changes == before + 3


async def test_a_broken_component_comes_back_every_time() -> None:
    async with Bench(breaker_reset_s=1.0) as bench:
        for number in range(20):
            bench.lane.break_out(f"for the {number}th time")
            await bench.converge()
            bench.commit(f"g{number}")
            await bench.settle()
            assert bench.subject.names[-1] == f"g{number}"
        assert bench.subject.rows[GROUPS]


@pytest.mark.parametrize("turns", range(4))
async def test_broken_out_while_its_worker_is_about_to_begin_it_begins(turns: int) -> None:
    bench = Bench(breaker_reset_s=1.0)
    bench.lane.resume_at(bench.registry.last, None)
    bench._tasks = [asyncio.create_task(bench.lane.run())]
    for _ in range(turns):
        await asyncio.sleep(0)
    bench.lane.break_out("full before it could begin")
    await bench.converge()
    await bench.__aexit__(None, None, None)


@pytest.mark.parametrize("turns", range(12))
async def test_interrupted_at_any_moment_of_a_recovery_it_recovers(turns: int) -> None:
    """Broken out after each number of turns of the event loop: some fall into waits, some between them."""
    async with Bench(breaker_reset_s=1.0) as bench:
        bench.lane.refresh("test")
        for _ in range(turns):
            await asyncio.sleep(0)
        bench.lane.pause()
        for _ in range(turns % 3):
            await asyncio.sleep(0)
        bench.lane.resume()
        bench.commit("a")
        await bench.converge()
        bench.commit("b")
        await bench.settle()
        assert bench.subject.names[-1] == "b"


@pytest.mark.parametrize("turns", range(12))
async def test_ended_at_any_moment_a_lane_ends(turns: int) -> None:
    async with Bench() as bench:
        bench.commit(*(f"g{number}" for number in range(300)))
        for _ in range(turns):
            await asyncio.sleep(0)
        bench.lane.refresh("interrupts the worker")
        bench._tasks[0].cancel()
        await asyncio.wait_for(asyncio.gather(*bench._tasks, return_exceptions=True), 10)
        assert bench.lane.straggler is None
