"""The ledger: what it says about each component, and what the source may forget."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from astha.lanes.failures import FailureLog
from astha.lanes.inspection import slowest
from astha.lanes.lane import Lane
from astha.lanes.ledger import Ledger
from astha.lanes.snapshot import RefreshedSnapshot
from astha.lanes.state import LaneContext, LaneProgress, LaneState, RestoredLane
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import ManualClock, RecordingSubscriber
from registry.errors import Fenced, Unavailable
from registry.json_text import parse_json_as
from registry.position import Position, XidVisibility
from tests.doubles.registry import GROUPS, LEASE, TOPICS, SmallRegistry

A_LOT = Position(10_000_000)


class InMemory(RecordingSubscriber):
    durable = False


class LedgerHarness:
    """Lanes without workers: the test sets their positions."""

    def __init__(self, *names: str) -> None:
        self.registry = SmallRegistry()
        self.clock = ManualClock()
        self.names = names
        self.restart()

    def restart(self) -> None:
        """As after kill -9: only the ledger is left."""
        context = LaneContext(
            store=self.registry.store,
            clock=self.clock,
            recent=list,
            may_deliver=lambda: True,
            changed=lambda: None,
            failures=FailureLog(self.clock),
            epoch=lambda: 1,
        )
        self.lanes = [Lane(name, self.made(name), frozenset({GROUPS}), LanePolicy(), context) for name in self.names]
        self.ledger = Ledger(self.registry.store, self.clock)

    def made(self, name: str) -> RecordingSubscriber:
        return InMemory(GROUPS) if name == "in memory" else RecordingSubscriber(GROUPS)

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.lanes if lane.name == name)

    def go_live(self, name: str, position: int, refreshed: RefreshedSnapshot | None = None) -> Lane:
        """As if its refresh had begun when the stream was at this position."""
        lane = self.lane(name)
        lane.restore(RestoredLane(None, Position(position), refreshed))
        return lane

    async def write(self, received: int = 0) -> int:
        """As the daemon does."""
        written = await self.ledger.write(self._progress, Position(received), LEASE)
        for progress in written.refresh_owed:
            self.lane(progress.component).persisted_refresh_owed(progress)
        return written.acknowledged

    def start_at(self, position: Position) -> None:
        """As the daemon does."""
        self.ledger.start_at(position)
        for lane in self.lanes:
            lane.started(position)

    async def open(self) -> None:
        """As the daemon does."""
        for name, restored in (await self.ledger.open(self._progress())).items():
            self.lane(name).restore(restored)

    def _progress(self) -> list[LaneProgress]:
        return [lane.progress() for lane in self.lanes]


async def test_in_memory_state_is_refreshed_at_every_start_and_durable_state_resumes() -> None:
    harness = LedgerHarness("in memory", "durable")
    for name in harness.names:
        harness.go_live(name, 100)
    await harness.write(received=500)
    harness.restart()
    await harness.open()
    lane = harness.lane("in memory")
    assert (lane.state, lane.reason) == (
        LaneState.BOOTSTRAPPING,
        "its state is in memory: it is refreshed at every start",
    )
    assert (harness.lane("durable").state, harness.lane("durable").position) == (LaneState.LIVE, 100)
    await harness.write(received=500)
    assert harness.registry.ledger["in memory"].refresh_owed, "it holds nothing back while it is refreshed"


async def test_with_no_live_component_everything_received_is_acknowledged() -> None:
    harness = LedgerHarness("a", "b")
    assert await harness.write(received=500) == 500
    assert [entry.refresh_owed for entry in harness.registry.ledger.values()] == [True, True]


async def test_the_slowest_live_component_limits_the_acknowledgement() -> None:
    harness = LedgerHarness("a", "b", "c")
    harness.go_live("a", 100)
    harness.go_live("b", 300)
    harness.lane("c").open_circuit("test")
    assert await harness.write(received=500) == 100


async def test_only_positions_in_the_ledger_are_acknowledged() -> None:
    harness = LedgerHarness("a")
    lane = harness.go_live("a", 100)
    assert await harness.write(received=500) == 100
    lane.intake.position = Position(200)  # progress too small to be worth writing yet
    assert await harness.write(received=500) == 100
    lane.intake.position = A_LOT
    assert await harness.write(received=A_LOT) == A_LOT
    assert harness.registry.ledger["a"].position == A_LOT


async def test_progress_is_written_after_a_while_however_small() -> None:
    harness = LedgerHarness("a")
    lane = harness.go_live("a", 100)
    await harness.write()
    lane.intake.position = Position(101)
    await harness.clock.advance(11)
    assert await harness.write() == 101


async def test_time_that_passes_is_no_progress_that_is_worth_writing() -> None:
    """Positions of CockroachDB are nanoseconds: they advance even if nothing changes."""
    harness = LedgerHarness("a")
    harness.ledger = Ledger(harness.registry.store, harness.clock, unit="nanoseconds")
    lane = harness.go_live("a", 100)
    await harness.write()
    lane.intake.position = Position(9_000_000_000)
    assert await harness.write() == 100
    await harness.clock.advance(11)
    assert await harness.write() == 9_000_000_000


async def test_an_open_circuit_releases_the_source_once_the_owed_refresh_is_persisted() -> None:
    harness = LedgerHarness("a", "b")
    a, b = harness.go_live("a", 100), harness.go_live("b", 300)
    assert await harness.write() == 100
    a.open_circuit("test")
    harness.registry.down = True
    with pytest.raises(Unavailable):
        await harness.write()
    assert harness.ledger.acknowledged == 100
    harness.registry.down = False
    assert await harness.write() == 300
    assert harness.registry.ledger["a"].refresh_owed
    assert b.state is LaneState.LIVE


async def test_live_again_but_behind_the_acknowledgement_it_still_owes_the_refresh() -> None:
    harness = LedgerHarness("a", "b")
    harness.go_live("a", 500)
    assert await harness.write(received=500) == 500
    b = harness.go_live("b", 200)  # its refresh began at 200, 500 was acknowledged since
    harness.lane("a").intake.position = A_LOT
    assert await harness.write(received=A_LOT) == 500, "held where it is"
    assert harness.registry.ledger["b"].refresh_owed
    b.intake.position = Position(500)
    assert await harness.write(received=A_LOT) == 500
    assert not harness.registry.ledger["b"].refresh_owed


async def test_killed_while_it_was_behind_it_refreshes() -> None:
    harness = LedgerHarness("a", "b")
    harness.go_live("a", 500)
    await harness.write(received=500)
    harness.go_live("b", 200)
    await harness.write(received=500)
    harness.restart()
    await harness.open()
    assert harness.lane("a").state is LaneState.LIVE
    assert harness.lane("b").state is LaneState.BOOTSTRAPPING


async def test_killed_after_it_caught_up_it_resumes_at_its_position() -> None:
    harness = LedgerHarness("a")
    place = RefreshedSnapshot(XidVisibility(77, frozenset({70, 71})), Position(900))
    harness.go_live("a", 500, place)
    await harness.write(received=500)
    harness.restart()
    await harness.open()
    lane = harness.lane("a")
    assert (lane.state, lane.position, lane.intake.refreshed) == (LaneState.LIVE, 500, place)


async def test_a_component_behind_the_start_of_the_source_refreshes() -> None:
    harness = LedgerHarness("a", "b")
    harness.go_live("a", 100)
    harness.go_live("b", 300)
    await harness.write()
    harness.restart()
    await harness.open()
    harness.start_at(Position(300))
    assert harness.lane("a").state is LaneState.RECOVERING
    assert harness.lane("b").state is LaneState.LIVE
    assert harness.ledger.acknowledged == 300


async def test_a_component_with_another_subscription_than_before_refreshes() -> None:
    harness = LedgerHarness("a")
    harness.go_live("a", 100)
    await harness.write()
    harness.restart()
    harness.lane("a").tables = frozenset({GROUPS, TOPICS})
    await harness.open()
    assert harness.lane("a").state is LaneState.BOOTSTRAPPING
    assert harness.lane("a").reason == "its subscription has changed"


async def test_a_pause_survives_a_restart() -> None:
    harness = LedgerHarness("a")
    harness.go_live("a", 100)
    harness.lane("a").pause()
    await harness.write()
    harness.restart()
    await harness.open()
    assert harness.lane("a").state is LaneState.PAUSED


async def test_an_owed_refresh_survives_a_restart_with_its_reason() -> None:
    harness = LedgerHarness("a")
    harness.go_live("a", 100)
    harness.lane("a").open_circuit("its queue was full")
    await harness.write()
    harness.restart()
    await harness.open()
    assert harness.lane("a").state is LaneState.BOOTSTRAPPING
    assert harness.lane("a").reason == "its queue was full"


async def test_an_idle_ledger_is_not_written() -> None:
    harness = LedgerHarness("a")
    harness.go_live("a", 100)
    await harness.write()
    before = dict(harness.registry.ledger)
    await harness.write()
    assert harness.registry.ledger == before
    assert all(new is old for new, old in zip(harness.registry.ledger.values(), before.values(), strict=True))


async def test_another_history_resets_the_acknowledgement() -> None:
    """A restored server has lower positions: acknowledging an old one would make it forget future changes."""
    harness = LedgerHarness("a")
    harness.go_live("a", 5_000)
    assert await harness.write(received=5_000) == 5_000
    harness.ledger.start_over()
    harness.lane("a").start_over("restored")
    harness.start_at(Position(1_000))
    assert await harness.write(received=1_000) == 1_000
    harness.go_live("a", 1_100)
    assert await harness.write(received=1_100) == 1_100
    assert not harness.registry.ledger["a"].refresh_owed


async def test_another_history_that_begins_while_the_ledger_is_being_written() -> None:
    harness = LedgerHarness("a")
    harness.go_live("a", 5_000)
    harness.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(harness.write(received=5_000))
    await asyncio.sleep(0)
    harness.ledger.start_over()
    harness.lane("a").start_over("restored")
    harness.registry.before_ledger.set()
    assert await writing == 0, "the entry is written, but its position belongs to the old history"
    assert await harness.write() == 0
    assert harness.registry.ledger["a"].refresh_owed


async def test_two_writers_do_not_overtake_each_other() -> None:
    harness = LedgerHarness("a")
    lane = harness.go_live("a", 100)
    harness.registry.before_ledger = asyncio.Event()
    first = asyncio.create_task(harness.write())
    await asyncio.sleep(0)
    lane.intake.position = A_LOT
    second = asyncio.create_task(harness.write())
    await asyncio.sleep(0)
    harness.registry.before_ledger.set()
    assert [await first, await second] == [100, A_LOT]
    assert harness.registry.ledger["a"].position == A_LOT


async def test_a_lane_that_becomes_live_during_a_write_holds_back_the_acknowledgement() -> None:
    harness = LedgerHarness("a", "b")
    harness.go_live("a", 900)
    harness.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(harness.write(received=900))
    await asyncio.sleep(0)
    harness.lane("a").open_circuit("test")
    harness.go_live("b", 100)
    harness.registry.before_ledger.set()
    assert await writing == 0


async def test_a_refresh_waits_until_it_is_owed_in_the_ledger() -> None:
    harness = LedgerHarness("a")
    lane = harness.go_live("a", 100)
    await harness.write()
    lane.refresh("test")
    waiting = asyncio.create_task(lane.refresh_owed_persisted.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await harness.write()
    await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(lane.refresh_owed_persisted.wait(), 10)


async def test_a_write_in_progress_that_says_no_refresh_is_owed_does_not_count() -> None:
    harness = LedgerHarness("a")
    await harness.write()  # owed
    lane = harness.go_live("a", 100)
    harness.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(harness.write())
    await asyncio.sleep(0)
    lane.refresh("test")
    waiting = asyncio.create_task(lane.refresh_owed_persisted.wait())
    harness.registry.before_ledger.set()
    await writing
    await asyncio.sleep(0.01)
    assert not waiting.done(), "what has just been written says that it is live"
    await harness.write()
    await asyncio.wait_for(waiting, 10)


async def test_an_entry_is_written_again_after_a_write_that_failed() -> None:
    harness = LedgerHarness("a")
    await harness.write()  # owed
    lane = harness.go_live("a", 100)
    harness.registry.down = True
    with pytest.raises(Unavailable):
        await harness.write()
    harness.registry.down = False
    lane.open_circuit("never refreshed")
    lane.status.reason = "never refreshed"
    await harness.write()
    assert harness.registry.ledger["a"].state == "broken", "written again, however much it looks like what was there"


async def test_another_epoch_refuses_the_ledger() -> None:
    harness = LedgerHarness("a")
    harness.registry.epoch = 2
    with pytest.raises(Fenced):
        await harness.write()
    assert harness.registry.ledger == {}


async def test_the_slowest_lane_is_the_one_that_keeps_the_source() -> None:
    harness = LedgerHarness("a", "b", "c")
    assert slowest(harness.lanes) is None
    harness.go_live("a", 300)
    b = harness.go_live("b", 100)
    assert slowest(harness.lanes) is b
    b.open_circuit("test")
    assert slowest(harness.lanes) is harness.lane("a")


async def test_an_entry_has_state_reason_and_tables() -> None:
    harness = LedgerHarness("a")
    harness.lane("a").open_circuit("its queue was full")
    await harness.write()
    entry = harness.registry.ledger["a"]
    assert (entry.state, entry.reason, entry.position) == ("broken", "its queue was full", None)
    assert parse_json_as(entry.tables, list[str]) == [GROUPS]
    assert msgspec.structs.asdict(entry)["refresh_owed"] is True
