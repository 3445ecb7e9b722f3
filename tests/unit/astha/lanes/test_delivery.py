"""Deliveries: order, retries, timeouts, and components that ignore cancellation."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from astha.backoff import Backoff
from astha.errors import Reject
from astha.events import Event
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from registry.models import Row
from tests.doubles.registry import GROUPS, TOPICS, group, topic
from tests.unit.astha.lanes.harness import LaneHarness, Subject

NO_BREAKER: dict[str, Any] = {"breaker_failures": 1_000}


class Chances(ManualClock):
    def __init__(self, chance: float) -> None:
        super().__init__()
        self._chance = chance

    def chance(self) -> float:
        return self._chance


async def test_events_come_in_commit_order_over_all_tables() -> None:
    subject = Subject(ManualClock(), GROUPS, TOPICS)
    async with LaneHarness(subject) as harness:
        for number in range(100):
            harness.offer(harness.registry.commit(group(f"g{number}"), topic(f"t{number}"), group(f"h{number}")))
        await harness.settle()
        wanted = [name for n in range(100) for name in ((GROUPS, f"g{n}"), (TOPICS, f"t{n}"), (GROUPS, f"h{n}"))]
        assert [
            (event.table, str(event.data.__getattribute__(event.data.key[0]))) for event in subject.events
        ] == wanted
        assert harness.lane.position == harness.registry.last


async def test_a_commit_is_delivered_without_waiting_for_more() -> None:
    """No timed batching: a commit is delivered without the clock moving."""
    async with LaneHarness() as harness:
        before = harness.clock.monotonic()
        harness.commit("a")
        await harness.settle()
        assert harness.subject.names == ["a"]
        assert harness.clock.monotonic() == before


async def test_whole_transactions_come_in_one_call() -> None:
    subject = Subject(ManualClock(), whole_transactions=True)
    async with LaneHarness(subject) as harness:
        harness.commit("a", "b")
        harness.commit("c")
        await harness.settle()
        assert [[event.data for event in events] for events in subject.transactions] == [
            [group("a"), group("b")],
            [group("c", 10)],
        ]


async def test_a_whole_transaction_is_retried_whole() -> None:
    subject = Subject(ManualClock(), whole_transactions=True)
    async with LaneHarness(subject) as harness:
        subject.misbehave(Fault.FAIL_AFTER_EFFECT, times=2)
        harness.commit("a", "b")
        await harness.pass_time(10)
        assert subject.names == ["a", "b"] * 3
        assert subject.refreshes == 1


class Batches(Subject):
    """Takes all queued transactions in one call."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.batches: list[list[list[str]]] = []
        self.failures = 0

    async def on_transactions(self, transactions: list[list[Event[Row]]]) -> None:
        self.batches.append([[event.data.__getattribute__("group_id") for event in part] for part in transactions])
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not yet")
        for part in transactions:
            for event in part:
                await self.on_event(event)


async def test_queued_transactions_are_delivered_in_one_call_without_waiting_for_more() -> None:
    subject = Batches(ManualClock())
    async with LaneHarness(subject) as harness:
        before = harness.clock.monotonic()
        for names in ("ab", "c", "def"):
            harness.commit(*names)
        await harness.settle()
        harness.commit("g")
        await harness.settle()
        assert subject.batches == [[["a", "b"], ["c"], ["d", "e", "f"]], [["g"]]]
        assert harness.clock.monotonic() == before
        assert harness.lane.position == harness.registry.last


async def test_several_transactions_in_one_call_are_retried_together() -> None:
    subject = Batches(ManualClock())
    async with LaneHarness(subject) as harness:
        subject.failures = 2
        harness.commit("a")
        harness.commit("b", "c")
        await harness.pass_time(10)
        assert subject.batches == [[["a"], ["b", "c"]]] * 3
        assert subject.names == ["a", "b", "c"]
        assert subject.refreshes == 1


async def test_a_long_transaction_is_delivered_in_order_in_chunks() -> None:
    async with LaneHarness() as harness:
        names = [f"g{number}" for number in range(2_000)]
        harness.commit(*names)
        await harness.pass_time(1)
        assert harness.subject.names == names


async def test_retries_wait_exponentially_up_to_a_cap_and_are_at_most_thirty() -> None:
    async with LaneHarness(**NO_BREAKER, backoff_initial_s=0.1, backoff_max_s=2.0) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(100)
        calls = harness.subject.calls
        waits = [later - earlier for earlier, later in pairwise(calls)]
        assert len(calls) == 30
        assert waits == pytest.approx([0.75 * min(2.0, 0.1 * 2**n) for n in range(29)])


async def test_attempts_are_counted_as_the_policy_says() -> None:
    async with LaneHarness(**NO_BREAKER, attempts=3) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(100)
        assert harness.subject.hits == 3


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (1.0, 1.0)])
async def test_jitter_never_takes_more_than_half(chance: float, factor: float) -> None:
    backoff = Backoff(initial_s=0.1, max_s=10.0)
    waits = [backoff.wait_s(failures, Chances(chance)) for failures in (1, 2, 3, 1_000)]
    assert waits == pytest.approx([0.1 * factor, 0.2 * factor, 0.4 * factor, 10 * factor])


async def test_an_undeliverable_event_is_dropped_and_the_component_refreshes() -> None:
    async with LaneHarness(**NO_BREAKER) as harness:
        harness.subject.misbehave(Fault.FAIL, times=30)
        harness.commit("poison")
        harness.commit("after")
        await harness.converge()
        assert harness.lane.counts.dropped == 1
        assert harness.subject.refreshes == 2
        assert harness.subject.events == [], "the refresh contains both: neither is delivered after it"


async def test_a_reject_is_not_retried() -> None:
    async with LaneHarness() as harness:
        harness.subject.misbehave(Fault.REJECT, times=1)
        harness.commit("poison")
        before = harness.clock.monotonic()
        await harness.settle()
        assert harness.clock.monotonic() == before
        assert harness.subject.hits == 1
        assert harness.subject.refreshes == 2
        assert harness.lane.counts.dropped == 1
        await harness.converge()


async def test_an_event_that_failed_after_its_effect_is_delivered_again() -> None:
    async with LaneHarness() as harness:
        harness.subject.misbehave(Fault.FAIL_AFTER_EFFECT, times=1)
        harness.commit("a")
        harness.commit("b")
        await harness.pass_time(1)
        assert harness.subject.names == ["a", "a", "b"]


async def test_only_the_failed_event_of_a_transaction_is_repeated() -> None:
    async with LaneHarness() as harness:
        harness.commit("a", "b", "c")
        await harness.settle()
        harness.subject.misbehave(Fault.FAIL_AFTER_EFFECT, times=1)
        harness.commit("d", "e", "f")
        await harness.pass_time(1)
        assert harness.subject.names == ["a", "b", "c", "d", "d", "e", "f"]


async def test_a_delivery_that_hangs_is_cancelled_and_retried() -> None:
    async with LaneHarness(delivery_timeout_s=5.0, health_interval_s=1_000) as harness:
        harness.subject.misbehave(Fault.HANG, times=1)
        harness.commit("a")
        await harness.pass_time(4.5)
        assert harness.subject.names == []
        await harness.pass_time(2)
        assert harness.subject.names == ["a"]
        assert harness.lane.state is LaneState.LIVE
        assert harness.subject.refreshes == 1


async def test_a_slow_delivery_within_its_timeout_is_left_alone() -> None:
    async with LaneHarness(delivery_timeout_s=5.0) as harness:
        gate = asyncio.Event()
        await _gated(harness, gate)
        harness.commit("a")
        await harness.pass_time(4.5)
        gate.set()
        await harness.settle()
        assert harness.subject.names == ["a"]


async def test_the_circuit_of_a_component_that_ignores_cancellation_is_open_until_it_returns() -> None:
    async with LaneHarness(delivery_timeout_s=1.0, breaker_reset_s=1.0) as harness:
        harness.subject.misbehave(Fault.STUBBORN, times=1)
        harness.commit("a")
        await harness.pass_time(10)
        assert harness.lane.state is LaneState.BROKEN
        assert "ignores cancellation" in (harness.lane.reason or "")
        harness.commit("b")
        await harness.pass_time(100)
        assert len(harness.subject.calls) == 1, "nothing else is called before it has come back"
        harness.subject.behave()
        await harness.converge()
        harness.commit("c")
        await harness.settle()
        assert harness.subject.names[-1] == "c"


async def test_after_a_call_that_ignored_its_cancellation_the_watchdog_still_watches() -> None:
    """The state of the first interruption must not affect the next call."""
    async with LaneHarness(delivery_timeout_s=1.0, breaker_reset_s=1.0, **NO_BREAKER) as harness:
        harness.subject.misbehave(Fault.STUBBORN, times=1)
        harness.commit("a")
        await harness.pass_time(1.3)  # cancelled, and ignored
        harness.subject.behave()
        await harness.pass_time(0.1)
        assert harness.subject.names == ["a"]
        harness.subject.misbehave(Fault.HANG, times=1)
        harness.commit("b")
        await harness.pass_time(5)
        assert harness.subject.names == ["a", "b"], "the second hang was cancelled and retried"
        assert harness.subject.refreshes == 1


async def test_an_error_raised_on_cancellation_counts_as_that_error() -> None:
    """The call ends with another error than CancelledError: the interruption is settled all the same."""

    class Spiteful(Subject):
        spite = 1

        async def on_event(self, event: Event[Row]) -> None:
            if self.spite:
                self.spite -= 1
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ConnectionError("lost while cleaning up") from None
            await super().on_event(event)

    subject = Spiteful(ManualClock())
    async with LaneHarness(subject, delivery_timeout_s=1.0, health_interval_s=1_000) as harness:
        harness.commit("a")
        await harness.pass_time(3)
        assert subject.names == ["a"]
        subject.misbehave(Fault.HANG, times=1)
        harness.commit("b")
        await harness.pass_time(5)
        assert subject.names == ["a", "b"]
        assert harness.lane.state is LaneState.LIVE


async def test_a_cancelled_error_that_the_component_caused_itself_does_not_end_the_lane() -> None:
    class Careless(Subject):
        careless = 1

        async def on_event(self, event: Event[Row]) -> None:
            if self.careless:
                self.careless -= 1
                inner = asyncio.create_task(asyncio.Event().wait())
                await asyncio.sleep(0)
                inner.cancel()
                await inner
            await super().on_event(event)

    async with LaneHarness(Careless(ManualClock())) as harness:
        harness.commit("a")
        await harness.pass_time(1)
        assert harness.subject.names == ["a"]


class Odd(BaseException):
    """Not an Exception: no `except Exception` catches it."""


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Odd(), MemoryError()])
async def test_whatever_is_raised_stays_in_the_lane(error: BaseException) -> None:
    class Raising(Subject):
        times_raised = 0

        async def on_event(self, event: Event[Row]) -> None:
            if not self.times_raised:
                self.times_raised += 1
                raise error
            await super().on_event(event)

    async with LaneHarness(Raising(ManualClock()), breaker_reset_s=1.0) as harness:
        harness.commit("a")
        await harness.converge()
        harness.commit("b")
        await harness.settle()
        assert harness.subject.names[-1] == "b"


@pytest.mark.parametrize("fault", [Fault.EXIT])
async def test_the_circuit_of_a_component_that_tries_to_end_the_daemon_is_opened(fault: Fault) -> None:
    async with LaneHarness() as harness:
        harness.subject.misbehave(fault, times=1)
        harness.commit("a")
        await harness.settle()
        assert harness.lane.state is LaneState.BROKEN
        assert "end the daemon" in (harness.lane.reason or "")
        await harness.converge()


async def test_returning_something_else_than_a_coroutine_is_an_ordinary_error() -> None:
    class Garbage(Subject):
        garbage = 1

        def on_event(self, event: Event[Row]) -> object:  # type: ignore[override]
            if self.garbage:
                self.garbage -= 1
                return 42
            return super().on_event(event)

    async with LaneHarness(Garbage(ManualClock())) as harness:
        harness.commit("a")
        await harness.pass_time(1)
        assert harness.subject.names == ["a"]


async def test_a_lane_that_ends_leaves_a_stubborn_call_behind_and_makes_no_other() -> None:
    harness = LaneHarness(drain_timeout_s=0.05)
    async with harness:
        harness.subject.misbehave(Fault.STUBBORN, times=1)
        harness.commit("a", "b")
        harness.commit("c")
        await harness.settle()
        harness._tasks[0].cancel()
        await asyncio.gather(*harness._tasks, return_exceptions=True)
        straggler = harness.lane.calls.straggler
        assert straggler is not None
        harness.subject.behave()
        await asyncio.wait({straggler}, timeout=10)
        assert harness.lane.calls.straggler is None
        assert harness.subject.names == ["a"], "no call is made after the end of a lane"


async def test_two_lanes_never_wait_for_each_other() -> None:
    harness = LaneHarness()
    other = Subject(harness.clock)
    harness.add("other", other)
    async with harness:
        harness.subject.misbehave(Fault.HANG)
        for number in range(10):
            harness.commit(f"g{number}")
            await harness.settle()
            assert other.names[-1] == f"g{number}"
        assert harness.subject.names == []


async def test_a_lane_that_is_interrupted_while_it_yields_stops_yielding() -> None:
    async with LaneHarness() as harness:
        harness.commit(*(f"g{number}" for number in range(600)))
        harness.delivery._slice_ends = -1.0  # its turn is over at the next look
        while not harness.lane.yielding:  # noqa: ASYNC110  (a state between two turns of the loop)
            await asyncio.sleep(0)
        harness.lane.pause()
        await harness.settle()
        assert not harness.lane.yielding


# -- leadership ---------------------------------------------------------------------------------------------


async def test_without_a_valid_lease_nothing_is_delivered() -> None:
    async with LaneHarness() as harness:
        harness.leading = False
        harness.commit("a")
        await harness.pass_time(5)
        assert harness.subject.names == []
        harness.leading = True
        await harness.pass_time(0.1)
        assert harness.subject.names == ["a"]


async def test_leadership_lost_within_a_transaction_stops_it_after_the_call_in_flight() -> None:
    async with LaneHarness() as harness:
        gate = asyncio.Event()
        await _gated(harness, gate)
        harness.commit("a", "b", "c")
        await harness.settle()
        harness.leading = False
        await harness.pass_time(1)
        gate.set()
        await harness.pass_time(5)
        assert harness.subject.names == ["a"]
        harness.leading = True
        await harness.pass_time(1)
        assert harness.subject.names == ["a", "b", "c"]


async def test_leadership_lost_during_retries_stops_them() -> None:
    async with LaneHarness(**NO_BREAKER) as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.settle()
        harness.leading = False
        await harness.pass_time(60)
        assert harness.subject.hits == 1
        harness.subject.behave()
        harness.leading = True
        await harness.pass_time(1)
        assert harness.subject.names == ["a"]


async def test_the_lease_is_checked_after_each_chunk_of_a_transaction() -> None:
    async with LaneHarness() as harness:

        async def lose(event: Event[Row]) -> None:
            harness.leading = False

        harness.delivery._on_event = lose
        harness.commit(*(f"g{number}" for number in range(2_000)))
        await harness.settle()
        assert harness.lane.calls.made - harness.lane.counts.refresh_calls <= 256


async def test_the_reason_names_the_rejected_event() -> None:
    async with LaneHarness() as harness:
        harness.subject.misbehave(Fault.REJECT, times=1)
        harness.subject.refresh_error = Reject("no refresh either")
        harness.commit("a")
        await harness.settle()
        assert "INSERT of consumer_groups at 10 failed once: Reject('never')" in (harness.lane.reason or "")


async def _gated(harness: LaneHarness, gate: asyncio.Event) -> None:
    """The first delivery from now on waits for the gate."""
    deliver = harness.subject.on_event

    async def wait(event: Event[Row]) -> None:
        await gate.wait()
        await deliver(event)

    harness.delivery._on_event = wait
