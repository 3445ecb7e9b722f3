"""`on_exhausted: hold`: nothing is dropped, and what does not fit the queue is read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from astha.errors import SourceLost
from astha.events import Event, Transaction
from astha.lanes.lane import Lane
from astha.lanes.ledger import Ledger
from astha.lanes.state import LaneState
from astha.sources.contract import Progress
from astha.testing import Fault, ManualClock
from registry.models import DaemonLease, Row
from registry.position import Position
from tests.doubles.registry import group
from tests.unit.astha.lanes.harness import LaneHarness, Subject

LEASE = DaemonLease("astha", "me", 1, 0, 60_000)
HOLD: dict[str, Any] = {"on_exhausted": "hold", "attempts": 3, "breaker_reset_s": 1.0}


class Log:
    """The changes that the database keeps, read a second time beside the stream."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.opened: list[int] = []
        self.error: Exception | None = None
        self.batch = 3
        self.grew = asyncio.Event()

    async def replay(
        self, _: frozenset[str], after: Position
    ) -> AsyncGenerator[Sequence[Transaction] | Progress, None]:
        self.opened.append(after)
        place = next((n for n, each in enumerate(self.transactions) if each.position > after), len(self.transactions))
        while True:
            if self.error is not None:
                raise self.error
            batch = self.transactions[place : place + self.batch]
            if batch:
                place += len(batch)
                yield batch
                await asyncio.sleep(0)
            else:
                self.grew.clear()
                await self.grew.wait()


class HoldHarness(LaneHarness):
    def __init__(self, subject: Subject | None = None, **policy: Any) -> None:
        self.log = Log()
        super().__init__(subject, **{**HOLD, **policy})

    async def __aenter__(self) -> HoldHarness:
        await super().__aenter__()
        return self

    def make_lane(self, name: str, subject: Subject, **policy: Any) -> Lane:
        lane = super().make_lane(name, subject, **policy)
        lane.context = msgspec.structs.replace(lane.context, replay=self.log.replay)
        return lane

    def commit(self, *names: str) -> Transaction:
        transaction = super().commit(*names)
        self.log.transactions.append(transaction)
        self.log.grew.set()
        return transaction


async def test_after_the_last_attempt_the_same_event_is_tried_again_and_nothing_is_dropped() -> None:
    async with HoldHarness(backoff_max_s=4.0) as harness:
        harness.subject.misbehave(Fault.FAIL)
        for name in "abc":
            harness.commit(name)
        await harness.pass_time(10)
        assert (harness.lane.state, harness.lane.queue.events) == (LaneState.HELD, 3)
        assert "failed" in (harness.lane.reason or "")
        before = harness.subject.hits
        await harness.pass_time(100)
        assert 100 / 4 - 1 <= harness.subject.hits - before <= 2 * 100 / 4 + 5, "with the capped backoff"
        harness.subject.behave()
        await harness.pass_time(10)
        assert harness.lane.state is LaneState.LIVE
        assert harness.subject.names == ["a", "b", "c"]
        assert (harness.subject.refreshes, harness.lane.counts.dropped) == (1, 0)


@pytest.mark.parametrize("fault", [Fault.REJECT, Fault.EXIT, Fault.HANG])
async def test_whatever_the_error_nothing_is_dropped(fault: Fault) -> None:
    async with HoldHarness(delivery_timeout_s=1.0) as harness:
        harness.subject.misbehave(fault)
        harness.commit("a")
        await harness.pass_time(100)
        assert harness.lane.state is LaneState.HELD
        harness.subject.behave()
        await harness.pass_time(60)
        assert (harness.lane.state, harness.subject.names, harness.subject.refreshes) == (LaneState.LIVE, ["a"], 1)


class FailsAt(Subject):
    """Fails at one event, as long as `bad` names it."""

    def __init__(self, clock: ManualClock, name: str) -> None:
        super().__init__(clock)
        self.bad: str | None = name

    async def on_event(self, event: Event[Row]) -> None:
        if getattr(event.data, "group_id", None) == self.bad:
            raise RuntimeError("not this one")
        await super().on_event(event)


@pytest.mark.parametrize("together", [True, False], ids=["one transaction", "one by one"])
async def test_events_delivered_before_the_failed_one_are_not_repeated(together: bool) -> None:
    names = [f"g{number}" for number in range(40)]
    subject = FailsAt(ManualClock(), "g25")
    async with HoldHarness(subject) as harness:
        harness.commit("warm")  # quick: the next ones come in runs
        if together:
            harness.commit(*names)
        else:
            harness.offer(*(harness.registry.commit(group(name)) for name in names))
        await harness.pass_time(100)
        assert harness.lane.state is LaneState.HELD
        assert subject.names == ["warm", *names[:25]]
        subject.bad = None
        await harness.pass_time(60)
        assert subject.names == ["warm", *names]
        assert harness.lane.position == harness.registry.last


async def test_more_than_the_queue_holds_is_read_again_in_order_and_once() -> None:
    async with HoldHarness(max_events=10) as harness:
        harness.subject.misbehave(Fault.FAIL)
        names = [f"g{number}" for number in range(100)]
        for name in names:
            harness.commit(name)
        await harness.pass_time(30)
        assert harness.lane.state is LaneState.HELD
        assert harness.lane.queue.events == 10, "memory is bounded"
        harness.subject.behave()
        await harness.pass_time(60)
        harness.commit("last")
        await harness.pass_time(1)
        assert harness.subject.names == [*names, "last"]
        assert (harness.subject.refreshes, harness.lane.counts.dropped) == (1, 0)
        assert len(harness.log.opened) == 1
        assert harness.lane.position == harness.registry.last


class Busy(FailsAt):
    """Commits during each delivery: the stream is always ahead of what is read again."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, "g0")
        self.more = 0
        self.harness: HoldHarness | None = None

    async def on_event(self, event: Event[Row]) -> None:
        await super().on_event(event)
        if self.more and self.harness is not None:
            self.more -= 1
            self.harness.commit(f"m{self.more}")
            await asyncio.sleep(0)


async def test_catching_up_converges_while_the_stream_continues() -> None:
    subject = Busy(ManualClock())
    async with HoldHarness(subject, max_events=10) as harness:
        subject.harness = harness
        for number in range(50):
            harness.commit(f"g{number}")
        await harness.pass_time(20)
        subject.bad, subject.more = None, 200
        await harness.pass_time(100)
        wanted = [*(f"g{number}" for number in range(50)), *(f"m{number}" for number in reversed(range(200)))]
        assert subject.names == wanted
        assert not harness.lane.intake.behind
        assert harness.lane.state is LaneState.LIVE


async def test_a_truncate_that_arrives_while_it_catches_up_makes_it_refresh() -> None:
    class TruncatesOnce(FailsAt):
        harness: HoldHarness | None = None
        truncated = False

        async def on_event(self, event: Event[Row]) -> None:
            await super().on_event(event)
            if self.harness is not None and len(self.events) > 20 and not self.truncated:
                self.truncated = True
                self.harness.offer(self.harness.registry.truncate())
                await asyncio.sleep(0)

    subject = TruncatesOnce(ManualClock(), "g0")
    async with HoldHarness(subject, max_events=10) as harness:
        subject.harness = harness
        for number in range(30):
            harness.commit(f"g{number}")
        await harness.pass_time(20)
        subject.bad = None
        await harness.pass_time(100)
        assert subject.truncated
        assert (harness.lane.state, subject.refreshes) == (LaneState.LIVE, 2)
        harness.commit("later")
        await harness.settle()
        assert subject.names[-1] == "later"


async def test_a_source_that_can_not_be_read_again_now_is_tried_later() -> None:
    async with HoldHarness(max_events=10) as harness:
        harness.subject.misbehave(Fault.FAIL)
        names = [f"g{number}" for number in range(30)]
        for name in names:
            harness.commit(name)
        await harness.pass_time(20)
        harness.log.error = SourceLost("no free slot")
        harness.subject.behave()
        await harness.pass_time(60)
        assert harness.lane.state is LaneState.HELD
        assert "can't be read again: no free slot" in (harness.lane.reason or "")
        harness.log.error = None
        await harness.pass_time(60)
        assert harness.subject.names == names


async def test_a_failed_health_check_holds_the_component() -> None:
    async with HoldHarness(health_interval_s=1.0) as harness:
        harness.subject.healthy = False
        await harness.pass_time(2)
        assert harness.lane.state is LaneState.HELD
        harness.commit("a")
        await harness.pass_time(30)
        assert harness.subject.names == []
        harness.subject.healthy = True
        await harness.pass_time(60)
        assert (harness.lane.state, harness.subject.names, harness.subject.refreshes) == (LaneState.LIVE, ["a"], 1)


async def test_a_forced_open_circuit_is_logged_as_an_error_and_followed_by_a_refresh() -> None:
    async with HoldHarness() as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(20)
        with capture_logs() as lines:
            harness.lane.force_open_circuit("the database keeps 10 bytes of changes for it; the budget is 9")
        assert harness.lane.state is LaneState.BROKEN
        (line,) = [line for line in lines if line["log_level"] == "error"]
        assert (line["event"], line["component"]) == ("component loses events that it wanted to hold", "subject")
        assert harness.lane.counts.dropped == 1
        harness.subject.behave()
        await harness.converge()
        assert harness.subject.refreshes == 2


async def test_a_held_component_keeps_the_source_and_resumes_after_a_crash() -> None:
    async with HoldHarness() as harness:
        ledger = Ledger(harness.registry.store, harness.clock)
        harness.commit("a")
        await harness.settle()
        position = harness.lane.position
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("b")
        await harness.pass_time(20)
        assert harness.lane.state is LaneState.HELD
        written = await ledger.write(lambda: [harness.lane.progress()], harness.registry.last, LEASE)
        assert written.acknowledged == position
        entry = harness.registry.ledger["subject"]
        assert (entry.state, entry.position, entry.refresh_owed) == ("held", position, False)
        restarted = harness.make_lane("subject", harness.subject)
        restored = await Ledger(harness.registry.store, harness.clock).open([restarted.progress()])
        restarted.restore(restored["subject"])
        assert (restarted.state, restarted.position) == (LaneState.LIVE, position)


async def test_another_history_ends_a_hold() -> None:
    async with HoldHarness() as harness:
        harness.subject.misbehave(Fault.FAIL)
        harness.commit("a")
        await harness.pass_time(20)
        harness.lane.start_over("the slot is gone")
        harness.subject.behave()
        await harness.converge()
        assert harness.subject.refreshes == 2


async def test_the_stream_does_not_wait_for_a_lane_that_catches_up() -> None:
    async with HoldHarness(max_events=10) as harness:
        seen = []
        for behind in (False, True):
            harness.lane.intake.behind = behind
            harness.delivery._slice_ends = -1.0  # its time slice is over
            yielding = asyncio.create_task(harness.delivery._yield())
            await asyncio.sleep(0)
            seen.append(harness.lane.yielding)
            await yielding
        assert seen == [True, False]
        harness.lane.intake.behind = False
