"""Refreshes: exact, repeated until they are enough, and never the end of a lane."""

from __future__ import annotations

import asyncio

import pytest

from astha.events import Commit, Event, Operation, Transaction
from astha.lanes.ledger import Ledger
from astha.lanes.refresh import Contained, snapshot_after
from astha.lanes.state import LaneState
from astha.testing import Fault, ManualClock
from registry.errors import Unavailable
from registry.models import ConsumerGroup
from registry.position import Position, SequenceVisibility, XidVisibility
from tests.doubles.registry import GROUPS, LEASE, SmallRegistry, group
from tests.unit.astha.lanes.harness import Bench, Subject


async def test_the_first_thing_a_component_sees_is_the_registry() -> None:
    bench = Bench()
    bench.registry.commit(group("a"), group("b"))
    async with bench:
        assert bench.subject.rows[GROUPS] == bench.registry.rows[ConsumerGroup]
        assert bench.subject.events == []
        assert bench.subject.refreshes == 1


async def test_what_came_during_a_refresh_and_is_not_in_it_is_delivered_after_it() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.commit("after")
        await bench.settle()
        assert bench.subject.names == []
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.subject.names == ["after"]
        await bench.converge()


async def test_what_the_snapshot_contains_is_not_delivered_after_it() -> None:
    """The commit is in the snapshot, but the stream brings it later."""
    async with Bench() as bench:
        early = bench.registry.commit(group("early"))
        bench.lane.refresh("test")
        await bench.settle()
        assert bench.lane.state is LaneState.LIVE
        bench.offer(early)
        bench.commit("late")
        await bench.settle()
        assert bench.subject.names == ["late"]
        assert bench.lane.contained is None, "the stream is past it"
        await bench.converge()


async def test_a_snapshot_that_lacks_a_commit_already_delivered_is_taken_again() -> None:
    async with Bench() as bench:
        bench.commit("delivered")
        await bench.settle()
        bench.registry.invisible = 3
        bench.lane.refresh("test")
        await bench.reach(LaneState.LIVE)
        assert bench.registry.invisible == 0
        assert bench.subject.refreshes == 2, "only the one that contains it reached the component"


async def test_a_commit_that_never_becomes_visible_is_an_error_not_a_hang() -> None:
    registry, clock = SmallRegistry(), ManualClock()
    transaction = registry.commit(group("a"))
    registry.invisible = 1_000_000

    async def ask() -> None:
        async with snapshot_after(registry.store, [transaction.commit], clock):
            raise AssertionError("it does not contain it")

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.01)
    await clock.advance(61)
    with pytest.raises(Unavailable, match="still not visible"):
        await asyncio.wait_for(asking, 30)


async def test_a_refresh_slower_than_its_writers_converges() -> None:
    """Each time more comes meanwhile than the lane holds; each time it gets more room."""
    async with Bench(max_events=10) as bench:
        subject = bench.subject
        subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        for _ in range(20):
            for number in range(50):
                bench.commit(f"g{number}")
            before = subject.refreshes
            subject.refresh_gate.set()
            while subject.refreshes == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
            subject.refresh_gate.clear()
            await bench.settle()
            if bench.lane.state is LaneState.LIVE:
                break
        else:
            raise AssertionError(f"it never became live: {bench.lane.reason}")
        subject.refresh_gate = None
        await bench.converge()
        assert bench.lane.queue.max_events == 10, "afterwards the lane has its own measure again"


async def test_a_refresh_that_never_ends_holds_no_more_than_the_lane() -> None:
    async with Bench(max_events=10, refresh_timeout_s=60.0, breaker_reset_s=1.0) as bench:
        bench.subject.refresh_fault = Fault.HANG
        bench.lane.refresh("test")
        await bench.settle()
        for number in range(1_000):
            bench.commit(f"g{number}")
            assert bench.lane.queue.events <= 10
        await bench.pass_time(300)
        for number in range(1_000):
            bench.commit(f"g{number}")
            assert bench.lane.queue.events <= 10
        bench.subject.behave()
        await bench.converge()


async def test_a_refresh_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    async with Bench(refresh_timeout_s=10.0, breaker_failures=5) as bench:
        bench.subject.refresh_fault = Fault.HANG
        bench.lane.refresh("test")
        await bench.pass_time(25)
        assert len(bench.subject.refreshed_at) >= 3
        assert bench.lane.counts.failed_refreshes >= 1
        bench.subject.behave()
        await bench.converge()


async def test_a_refresh_that_ignores_cancellation_breaks_the_lane_until_it_returns() -> None:
    async with Bench(refresh_timeout_s=5.0, breaker_reset_s=1.0) as bench:
        bench.subject.refresh_fault = Fault.STUBBORN
        bench.lane.refresh("test")
        await bench.pass_time(30)
        assert bench.lane.state is LaneState.BROKEN
        assert len(bench.subject.refreshed_at) == 2
        bench.subject.behave()
        await bench.converge()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), asyncio.CancelledError(), BaseException("odd")])
async def test_a_failed_refresh_is_tried_again(error: BaseException) -> None:
    async with Bench(breaker_failures=100) as bench:
        bench.subject.refresh_error = error
        bench.lane.refresh("test")
        await bench.pass_time(2)
        assert bench.lane.state is LaneState.RECOVERING
        assert bench.lane.counts.failed_refreshes >= 2
        bench.subject.behave()
        await bench.converge()


async def test_refreshes_that_go_on_failing_break_the_component() -> None:
    async with Bench(breaker_failures=3, breaker_reset_s=10.0) as bench:
        bench.subject.refresh_error = RuntimeError("no")
        bench.lane.refresh("test")
        await bench.pass_time(5)
        assert bench.lane.state is LaneState.BROKEN
        assert "refresh failed" in (bench.lane.reason or "")
        bench.subject.behave()
        await bench.converge()


async def test_a_registry_that_is_down_during_a_refresh_is_waited_for() -> None:
    async with Bench(breaker_failures=100) as bench:
        bench.registry.down = True
        bench.lane.refresh("test")
        await bench.pass_time(5)
        assert bench.lane.state is LaneState.RECOVERING
        bench.registry.down = False
        await bench.converge()


async def test_truncate_becomes_a_refresh() -> None:
    async with Bench() as bench:
        bench.commit("a", "b")
        await bench.settle()
        bench.offer(bench.registry.truncate())
        await bench.settle()
        assert bench.subject.rows[GROUPS] == {}
        assert bench.subject.refreshes == 2
        assert bench.lane.state is LaneState.LIVE


async def test_truncate_during_a_refresh_means_another_one() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.offer(bench.registry.truncate())
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.subject.refreshes == 3
        await bench.converge()


async def test_a_transaction_larger_than_the_lane_becomes_a_refresh_never_a_half() -> None:
    async with Bench(max_events=10) as bench:
        bench.commit(*(f"g{number}" for number in range(11)))
        await bench.settle()
        assert bench.subject.events == []
        assert bench.subject.refreshes == 2
        assert bench.lane.counts.broken == 0
        await bench.converge()


async def test_a_transaction_of_more_bytes_than_the_lane_becomes_a_refresh() -> None:
    async with Bench(max_bytes=1_000) as bench:
        bench.offer(bench.registry.commit(group("a"), size=1_001))
        await bench.settle()
        assert bench.subject.events == []
        await bench.converge()


async def test_what_stands_behind_an_oversized_transaction_in_the_same_batch_is_not_lost() -> None:
    async with Bench() as bench:
        registry = bench.registry
        large = registry.commit(group("large"))
        large.unlisted = frozenset({GROUPS})
        bench.offer(registry.commit(group("before")), large, registry.commit(group("behind")))
        await bench.converge()
        bench.commit("later")
        await bench.settle()
        assert bench.subject.names == ["later"]


async def test_what_comes_again_after_a_reconnect_is_not_delivered_again() -> None:
    async with Bench() as bench:
        first = [bench.commit(f"g{number}") for number in range(3)]
        await bench.settle()
        bench.offer(*first, bench.registry.commit(group("new")))
        await bench.settle()
        assert bench.subject.names == ["g0", "g1", "g2", "new"]


async def test_what_still_waits_when_it_comes_again_is_not_queued_twice() -> None:
    async with Bench() as bench:
        bench.subject.misbehave(Fault.HANG)
        first = [bench.commit(f"g{number}") for number in range(3)]
        await bench.settle()
        bench.offer(*first)
        assert len(list(bench.lane.queue)) == 3


async def test_a_lane_resumes_after_its_position() -> None:
    bench = Bench(resumed=True)
    old = [bench.registry.commit(group(f"old{number}")) for number in range(3)]
    async with bench:
        bench.lane.started(Position(0))
        bench.offer(*old)
        bench.commit("new")
        await bench.settle()
        assert bench.subject.names == ["new"]
        assert bench.subject.refreshes == 0


async def test_a_lane_resumes_with_what_its_refresh_contained() -> None:
    """Killed between the refresh and the moment at which the stream was past it."""
    bench = Bench()
    registry = bench.registry
    transactions = [registry.commit(group(f"g{number}")) for number in range(4)]
    # The second and third were in the snapshot, the first had been delivered before it.
    contained = Contained(XidVisibility(transactions[3].commit.transaction, frozenset()), transactions[3].position)
    bench.lane.resume_at(transactions[0].position, contained)
    async with bench:
        bench.offer(*transactions)
        await bench.settle()
        assert bench.subject.names == ["g3"]


async def test_killed_in_the_first_delivery_after_a_refresh_nothing_that_it_contained_comes_again() -> None:
    """The stream is past it, the component is not: until it is, paper has to say what the refresh contained."""
    async with Bench() as bench:
        early = bench.registry.commit(group("early"))
        bench.lane.refresh("test")
        await bench.settle()
        bench.subject.misbehave(Fault.HANG)
        late = bench.registry.commit(group("late"))
        bench.offer(early, late)
        await bench.settle()
        await Ledger(bench.registry.store, bench.clock).write(bench.lanes, bench.registry.last, LEASE)
        assert bench.subject.names == []
    after = Bench()
    await Ledger(bench.registry.store, after.clock).open(after.lanes)
    async with after:
        after.offer(early, late)
        await after.settle()
        assert after.subject.names == ["late"]
        assert after.subject.refreshes == 0


async def test_a_source_that_goes_on_beyond_a_component_makes_it_refresh() -> None:
    async with Bench() as bench:
        bench.commit("a")
        await bench.settle()
        bench.registry.commit(group("never streamed"))
        bench.lane.started(bench.registry.last)
        await bench.settle()
        assert bench.subject.refreshes == 2
        await bench.converge()


async def test_a_source_that_goes_on_where_a_component_has_read_to_does_not() -> None:
    """Even if the component itself has not done all of it yet: that is in its lane."""
    async with Bench() as bench:
        bench.subject.misbehave(Fault.HANG)
        transaction = bench.commit("a")
        await bench.settle()
        assert bench.lane.position < transaction.position
        bench.lane.started(transaction.position)
        assert bench.lane.state is LaneState.LIVE
        assert len(list(bench.lane.queue)) == 1


async def test_a_source_that_leaves_out_something_during_a_refresh_makes_it_repeat() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.registry.commit(group("never streamed"))
        bench.lane.started(bench.registry.last)
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.subject.refreshes == 3
        await bench.converge()


async def test_another_history_makes_everybody_refresh_and_positions_start_anew() -> None:
    async with Bench() as bench:
        bench.commit("old")
        await bench.settle()
        bench.registry.last = Position(0)
        bench.router.start_over()
        bench.lane.start_over("restored")
        bench.lane.started(Position(0))
        await bench.settle()
        bench.commit("new")
        await bench.settle()
        assert bench.subject.refreshes == 2
        assert bench.subject.names == ["old", "new"], "a position below the old ones is no repetition"
        assert bench.lane.position == bench.registry.last


async def test_another_history_during_a_refresh_makes_it_repeat() -> None:
    async with Bench() as bench:
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        bench.lane.start_over("restored")
        bench.subject.refresh_gate.set()
        await bench.settle()
        assert bench.subject.refreshes == 3


async def test_no_refresh_before_its_debt_is_on_paper() -> None:
    """Killed after it, the component must not find a position of before it."""
    async with Bench() as bench:
        bench.paper = asyncio.Event()
        bench.lane.refresh("test")
        await bench.pass_time(5)
        assert bench.subject.refreshes == 1
        bench.paper.set()
        await bench.converge()
        assert bench.subject.refreshes == 2


async def test_no_refresh_without_certain_leadership() -> None:
    async with Bench() as bench:
        bench.leading = False
        bench.lane.refresh("test")
        await bench.pass_time(5)
        assert bench.subject.refreshes == 1
        bench.leading = True
        await bench.converge()
        assert bench.subject.refreshes == 2


def test_what_a_snapshot_contains_goes_by_transaction_not_by_position() -> None:
    """PostgreSQL: a commit below the snapshot's end may be missing from it, one above its place in it."""
    contained = Contained(XidVisibility(100, frozenset({90})), Position(5_000))
    assert contained.holds(_transaction(xid=80, position=4_000))
    assert not contained.holds(_transaction(xid=90, position=1_000)), "running when the snapshot was taken"
    assert not contained.holds(_transaction(xid=100, position=1_000))
    assert not contained.holds(_transaction(xid=80, position=5_001)), "beyond: another transaction with that number"
    assert Contained.of(contained.document()) == contained
    sequence = Contained(SequenceVisibility(Position(7)), Position(7))
    assert Contained.of(sequence.document()) == sequence


def test_transaction_ids_of_32_bits_are_widened_to_the_snapshots_age() -> None:
    age = 3 << 32
    place = XidVisibility(age + 10, frozenset({age - 5}))
    assert place.contains(9, Position(1))
    assert not place.contains(10, Position(1))
    assert not place.contains((age - 5) & 0xFFFFFFFF, Position(1))
    assert place.contains((age - 6) & 0xFFFFFFFF, Position(1))
    almost = XidVisibility(age - 2, frozenset())
    assert not almost.contains(3, Position(1)), "after the wrap"


def _transaction(*, xid: int, position: int) -> Transaction:
    commit = Commit(xid, Position(position), 0, 1)
    return Transaction(commit, [Event(Operation.INSERT, group("a"), None, commit, 0)], frozenset({GROUPS}))


async def test_a_refresh_that_contains_half_of_what_the_change_log_joined_is_repeated() -> None:
    """SQLite: commits by hand that are found together come as one transaction, whose first half a snapshot may have."""
    async with Bench() as bench:
        registry = bench.registry
        first = registry.commit(group("first"))
        bench.lane.refresh("test")
        await bench.settle()
        assert bench.subject.refreshes == 2, "the snapshot has the first commit"
        second = registry.commit(group("second"))
        joined = Transaction(
            Commit(-first.position, second.position, 0, 2), [*first.events, *second.events], frozenset({GROUPS})
        )
        bench.offer(joined)
        await bench.converge()
        assert bench.subject.events == [], "neither is delivered after a refresh that contains it"
        assert bench.subject.refreshes == 3


async def test_the_same_while_the_refresh_is_under_way() -> None:
    async with Bench() as bench:
        registry = bench.registry
        first = registry.commit(group("first"))
        bench.subject.refresh_gate = asyncio.Event()
        bench.lane.refresh("test")
        await bench.settle()
        second = registry.commit(group("second"))
        bench.offer(
            Transaction(
                Commit(-first.position, second.position, 0, 2), [*first.events, *second.events], frozenset({GROUPS})
            )
        )
        bench.subject.refresh_gate.set()
        await bench.converge()
        assert bench.subject.events == []
        assert bench.subject.refreshes == 3


async def test_events_from_before_a_subject_was_made_are_nobodys() -> None:
    """A table that the lane does not subscribe to moves its position, and nothing else."""
    bench = Bench(Subject(ManualClock()))
    async with bench:
        bench.router.passed(Position(500))
        assert bench.lane.position == 500
        assert bench.subject.events == []
