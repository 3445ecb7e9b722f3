"""The ledger: what is on paper, and what the source may forget."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
from astha.lanes.ledger import Ledger
from astha.lanes.refresh import Contained
from astha.lanes.state import Around, LaneState
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import ManualClock, RecordingSubscriber
from registry.errors import Fenced, Unavailable
from registry.json_text import parse_json_as
from registry.position import Position, XidVisibility
from tests.doubles.registry import GROUPS, LEASE, TOPICS, SmallRegistry

A_LOT = Position(10_000_000)


class InMemory(RecordingSubscriber):
    durable = False


class Books:
    """Lanes that nobody runs: the test says where they stand."""

    def __init__(self, *names: str) -> None:
        self.registry = SmallRegistry()
        self.clock = ManualClock()
        self.names = names
        self.restart()

    def restart(self) -> None:
        """As after kill -9: what is on paper is all there is."""
        around = Around(
            store=self.registry.store,
            clock=self.clock,
            recent=list,
            may_deliver=lambda: True,
            changed=lambda: None,
            indebted=lambda name: self.ledger.indebted(name),
            failures=FailureLog(self.clock),
        )
        self.lanes = [Lane(name, self.made(name), frozenset({GROUPS}), LanePolicy(), around) for name in self.names]
        self.ledger = Ledger(self.registry.store, self.clock)

    def made(self, name: str) -> RecordingSubscriber:
        return InMemory(GROUPS) if name == "in memory" else RecordingSubscriber(GROUPS)

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.lanes if lane.name == name)

    def go_live(self, name: str, position: int, contained: Contained | None = None) -> Lane:
        """As if its refresh had begun when the stream was at this position."""
        lane = self.lane(name)
        lane.resume_at(Position(position), contained)
        return lane

    async def write(self, received: int = 0) -> int:
        return await self.ledger.write(self.lanes, Position(received), LEASE)


async def test_what_is_in_memory_is_refreshed_at_every_start_and_what_is_durable_goes_on() -> None:
    books = Books("in memory", "durable")
    for name in books.names:
        books.go_live(name, 100)
    await books.write(received=500)
    books.restart()
    await books.ledger.open(books.lanes)
    lane = books.lane("in memory")
    assert (lane.state, lane.reason) == (
        LaneState.BOOTSTRAPPING,
        "its state is in memory: it is refreshed at every start",
    )
    assert (books.lane("durable").state, books.lane("durable").position) == (LaneState.LIVE, 100)
    await books.write(received=500)
    assert books.registry.paper["in memory"].refresh_owed, "it holds nothing back while it is refreshed"


async def test_nobody_is_live_so_nothing_is_kept_for_anybody() -> None:
    books = Books("a", "b")
    assert await books.write(received=500) == 500
    assert [page.refresh_owed for page in books.registry.paper.values()] == [True, True]


async def test_the_slowest_live_component_holds_the_source() -> None:
    books = Books("a", "b", "c")
    books.go_live("a", 100)
    books.go_live("b", 300)
    books.lane("c").break_out("test")
    assert await books.write(received=500) == 100


async def test_not_what_was_received_is_acknowledged_but_what_is_done_and_on_paper() -> None:
    books = Books("a")
    lane = books.go_live("a", 100)
    assert await books.write(received=500) == 100
    lane.position = Position(200)  # progress too small to be worth writing yet
    assert await books.write(received=500) == 100
    lane.position = A_LOT
    assert await books.write(received=A_LOT) == A_LOT
    assert books.registry.paper["a"].position == A_LOT


async def test_progress_is_written_after_a_while_however_small() -> None:
    books = Books("a")
    lane = books.go_live("a", 100)
    await books.write()
    lane.position = Position(101)
    await books.clock.advance(11)
    assert await books.write() == 101


async def test_a_component_that_breaks_lets_go_once_its_debt_is_on_paper() -> None:
    books = Books("a", "b")
    a, b = books.go_live("a", 100), books.go_live("b", 300)
    assert await books.write() == 100
    a.break_out("test")
    books.registry.down = True
    with pytest.raises(Unavailable):
        await books.write()
    assert books.ledger.acknowledged == 100
    books.registry.down = False
    assert await books.write() == 300
    assert books.registry.paper["a"].refresh_owed
    assert b.state is LaneState.LIVE


async def test_live_again_but_behind_what_was_forgotten_it_owes_the_refresh_on_paper_and_holds_the_source() -> None:
    books = Books("a", "b")
    books.go_live("a", 500)
    assert await books.write(received=500) == 500
    b = books.go_live("b", 200)  # its refresh began at 200, the source has been told 500 since
    books.lane("a").position = A_LOT
    assert await books.write(received=A_LOT) == 500, "held where it is"
    assert books.registry.paper["b"].refresh_owed
    b.position = Position(500)
    assert await books.write(received=A_LOT) == 500
    assert not books.registry.paper["b"].refresh_owed


async def test_killed_while_it_was_behind_it_refreshes() -> None:
    books = Books("a", "b")
    books.go_live("a", 500)
    await books.write(received=500)
    books.go_live("b", 200)
    await books.write(received=500)
    books.restart()
    await books.ledger.open(books.lanes)
    assert books.lane("a").state is LaneState.LIVE
    assert books.lane("b").state is LaneState.BOOTSTRAPPING


async def test_killed_after_it_caught_up_it_resumes_at_its_position() -> None:
    books = Books("a")
    place = Contained(XidVisibility(77, frozenset({70, 71})), Position(900))
    books.go_live("a", 500, place)
    await books.write(received=500)
    books.restart()
    await books.ledger.open(books.lanes)
    lane = books.lane("a")
    assert (lane.state, lane.position, lane.contained) == (LaneState.LIVE, 500, place)


async def test_whoever_stands_before_the_sources_start_has_missed_something() -> None:
    books = Books("a", "b")
    books.go_live("a", 100)
    books.go_live("b", 300)
    await books.write()
    books.restart()
    await books.ledger.open(books.lanes)
    books.ledger.start_at(Position(300), books.lanes)
    assert books.lane("a").state is LaneState.RECOVERING
    assert books.lane("b").state is LaneState.LIVE
    assert books.ledger.acknowledged == 300


async def test_a_component_with_another_subscription_than_before_refreshes() -> None:
    books = Books("a")
    books.go_live("a", 100)
    await books.write()
    books.restart()
    books.lane("a").tables = frozenset({GROUPS, TOPICS})
    await books.ledger.open(books.lanes)
    assert books.lane("a").state is LaneState.BOOTSTRAPPING
    assert books.lane("a").reason == "its subscription has changed"


async def test_a_pause_survives_a_restart() -> None:
    books = Books("a")
    books.go_live("a", 100)
    books.lane("a").pause()
    await books.write()
    books.restart()
    await books.ledger.open(books.lanes)
    assert books.lane("a").state is LaneState.PAUSED


async def test_a_debt_survives_a_restart_with_its_reason() -> None:
    books = Books("a")
    books.go_live("a", 100)
    books.lane("a").break_out("it fell behind")
    await books.write()
    books.restart()
    await books.ledger.open(books.lanes)
    assert books.lane("a").state is LaneState.BOOTSTRAPPING
    assert books.lane("a").reason == "it fell behind"


async def test_an_idle_ledger_is_not_written() -> None:
    books = Books("a")
    books.go_live("a", 100)
    await books.write()
    before = dict(books.registry.paper)
    await books.write()
    assert books.registry.paper == before
    assert all(new is old for new, old in zip(books.registry.paper.values(), before.values(), strict=True))


async def test_another_history_forgets_what_was_acknowledged() -> None:
    """A restored server counts from the beginning: an old position told to it would make it forget the future."""
    books = Books("a")
    books.go_live("a", 5_000)
    assert await books.write(received=5_000) == 5_000
    books.ledger.start_over()
    books.lane("a").start_over("restored")
    books.ledger.start_at(Position(1_000), books.lanes)
    assert await books.write(received=1_000) == 1_000
    books.go_live("a", 1_100)
    assert await books.write(received=1_100) == 1_100
    assert not books.registry.paper["a"].refresh_owed


async def test_another_history_that_begins_while_the_ledger_is_being_written() -> None:
    books = Books("a")
    books.go_live("a", 5_000)
    books.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(books.write(received=5_000))
    await asyncio.sleep(0)
    books.ledger.start_over()
    books.lane("a").start_over("restored")
    books.registry.before_ledger.set()
    assert await writing == 0, "the page is written, but its position is of the past"
    assert await books.write() == 0
    assert books.registry.paper["a"].refresh_owed


async def test_two_writers_do_not_overtake_each_other() -> None:
    books = Books("a")
    lane = books.go_live("a", 100)
    books.registry.before_ledger = asyncio.Event()
    first = asyncio.create_task(books.write())
    await asyncio.sleep(0)
    lane.position = A_LOT
    second = asyncio.create_task(books.write())
    await asyncio.sleep(0)
    books.registry.before_ledger.set()
    assert [await first, await second] == [100, A_LOT]
    assert books.registry.paper["a"].position == A_LOT


async def test_who_goes_live_while_another_leaves_is_not_taken_for_it() -> None:
    books = Books("a", "b")
    books.go_live("a", 900)
    books.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(books.write(received=900))
    await asyncio.sleep(0)
    books.lane("a").break_out("test")
    books.go_live("b", 100)
    books.registry.before_ledger.set()
    assert await writing == 0


async def test_a_debt_is_waited_for_until_it_is_on_paper() -> None:
    books = Books("a")
    lane = books.go_live("a", 100)
    await books.write()
    lane.refresh("test")
    waiting = asyncio.create_task(books.ledger.indebted("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await books.write()
    await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(books.ledger.indebted("a"), 10)


async def test_a_page_under_way_that_denies_a_debt_is_not_overlooked() -> None:
    books = Books("a")
    await books.write()  # owed
    lane = books.go_live("a", 100)
    books.registry.before_ledger = asyncio.Event()
    writing = asyncio.create_task(books.write())
    await asyncio.sleep(0)
    lane.refresh("test")
    waiting = asyncio.create_task(books.ledger.indebted("a"))
    books.registry.before_ledger.set()
    await writing
    await asyncio.sleep(0.01)
    assert not waiting.done(), "what has just been written says that it is live"
    await books.write()
    await asyncio.wait_for(waiting, 10)


async def test_a_write_that_failed_may_have_been_done() -> None:
    books = Books("a")
    await books.write()  # owed
    lane = books.go_live("a", 100)
    books.registry.down = True
    with pytest.raises(Unavailable):
        await books.write()
    books.registry.down = False
    lane.break_out("never refreshed")
    lane.reason = "never refreshed"
    await books.write()
    assert books.registry.paper["a"].state == "broken", "written again, however much it looks like what was there"


async def test_another_epoch_refuses_the_ledger() -> None:
    books = Books("a")
    books.registry.epoch = 2
    with pytest.raises(Fenced):
        await books.write()
    assert books.registry.paper == {}


async def test_the_laggard_is_who_holds_the_source() -> None:
    books = Books("a", "b", "c")
    assert books.ledger.laggard(books.lanes) is None
    books.go_live("a", 300)
    b = books.go_live("b", 100)
    assert books.ledger.laggard(books.lanes) is b
    b.break_out("test")
    assert books.ledger.laggard(books.lanes) is books.lane("a")


async def test_pages_say_what_a_person_wants_to_know() -> None:
    books = Books("a")
    books.lane("a").break_out("it fell behind")
    await books.write()
    page = books.registry.paper["a"]
    assert (page.state, page.reason, page.position) == ("broken", "it fell behind", None)
    assert parse_json_as(page.tables, list[str]) == [GROUPS]
    assert msgspec.structs.asdict(page)["refresh_owed"] is True
