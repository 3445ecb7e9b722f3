"""Refreshes: exact, repeated until they are sufficient."""

from __future__ import annotations

import asyncio

import pytest

from astha.events import Commit, Event, Operation, Transaction
from astha.lanes.ledger import Ledger
from astha.lanes.snapshot import RefreshedSnapshot, snapshot_after
from astha.lanes.state import LaneState, RestoredLane
from astha.testing import Fault, ManualClock
from registry.errors import Unavailable
from registry.models import ConsumerGroup
from registry.position import Position, SequenceVisibility, XidVisibility
from tests.doubles.registry import GROUPS, LEASE, SmallRegistry, group
from tests.unit.astha.lanes.harness import LaneHarness, Subject


async def test_a_component_is_refreshed_before_its_first_event() -> None:
    harness = LaneHarness()
    harness.registry.commit(group("a"), group("b"))
    async with harness:
        assert harness.subject.rows[GROUPS] == harness.registry.rows[ConsumerGroup]
        assert harness.subject.events == []
        assert harness.subject.refreshes == 1


async def test_events_that_arrive_during_a_refresh_and_are_not_in_it_follow_it() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.commit("after")
        await harness.settle()
        assert harness.subject.names == []
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.subject.names == ["after"]
        await harness.converge()


async def test_events_in_the_snapshot_are_not_delivered_after_it() -> None:
    """The commit is in the snapshot, but the stream brings it later."""
    async with LaneHarness() as harness:
        early = harness.registry.commit(group("early"))
        harness.lane.refresh("test")
        await harness.settle()
        assert harness.lane.state is LaneState.LIVE
        harness.offer(early)
        harness.commit("late")
        await harness.settle()
        assert harness.subject.names == ["late"]
        assert harness.lane.intake.refreshed is None, "the stream is past it"
        await harness.converge()


async def test_a_snapshot_that_lacks_a_commit_already_delivered_is_taken_again() -> None:
    async with LaneHarness() as harness:
        harness.commit("delivered")
        await harness.settle()
        harness.registry.invisible = 3
        harness.lane.refresh("test")
        await harness.reach(LaneState.LIVE)
        assert harness.registry.invisible == 0
        assert harness.subject.refreshes == 2, "only the one that contains it reached the component"


async def test_a_commit_that_never_becomes_visible_is_an_error_not_a_hang() -> None:
    registry, clock = SmallRegistry(), ManualClock()
    transaction = registry.commit(group("a"))
    registry.invisible = 1_000_000

    async def ask() -> None:
        async with snapshot_after(registry.store, frozenset(), [transaction.commit], clock):
            raise AssertionError("it does not contain it")

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.01)
    await clock.advance(61)
    with pytest.raises(Unavailable, match="still not visible"):
        await asyncio.wait_for(asking, 30)


async def test_a_refresh_slower_than_its_writers_converges() -> None:
    """Each time more is written meanwhile than the queue holds, and each time its limits are doubled."""
    async with LaneHarness(max_events=10) as harness:
        subject = harness.subject
        subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        for _ in range(20):
            for number in range(50):
                harness.commit(f"g{number}")
            before = subject.refreshes
            subject.refresh_gate.set()
            while subject.refreshes == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
            subject.refresh_gate.clear()
            await harness.settle()
            if harness.lane.state is LaneState.LIVE:
                break
        else:
            raise AssertionError(f"it never became live: {harness.lane.reason}")
        subject.refresh_gate = None
        await harness.converge()
        assert harness.lane.queue.max_events == 10, "afterwards the lane has its own measure again"


async def test_a_refresh_that_never_ends_queues_no_more_than_the_lane_may() -> None:
    async with LaneHarness(max_events=10, refresh_timeout_s=60.0, breaker_reset_s=1.0) as harness:
        harness.subject.refresh_fault = Fault.HANG
        harness.lane.refresh("test")
        await harness.settle()
        for number in range(1_000):
            harness.commit(f"g{number}")
            assert harness.lane.queue.events <= 10
        await harness.pass_time(300)
        for number in range(1_000):
            harness.commit(f"g{number}")
            assert harness.lane.queue.events <= 10
        harness.subject.behave()
        await harness.converge()


async def test_a_refresh_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    async with LaneHarness(refresh_timeout_s=10.0, breaker_failures=5) as harness:
        harness.subject.refresh_fault = Fault.HANG
        harness.lane.refresh("test")
        await harness.pass_time(25)
        assert len(harness.subject.refreshed_at) >= 3
        assert harness.lane.counts.failed_refreshes >= 1
        harness.subject.behave()
        await harness.converge()


async def test_a_refresh_that_ignores_cancellation_keeps_the_circuit_open_until_it_returns() -> None:
    async with LaneHarness(refresh_timeout_s=5.0, breaker_reset_s=1.0) as harness:
        harness.subject.refresh_fault = Fault.STUBBORN
        harness.lane.refresh("test")
        await harness.pass_time(30)
        assert harness.lane.state is LaneState.BROKEN
        assert len(harness.subject.refreshed_at) == 2
        harness.subject.behave()
        await harness.converge()


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), asyncio.CancelledError(), BaseException("odd")])
async def test_a_failed_refresh_is_tried_again(error: BaseException) -> None:
    async with LaneHarness(breaker_failures=100) as harness:
        harness.subject.refresh_error = error
        harness.lane.refresh("test")
        await harness.pass_time(2)
        assert harness.lane.state is LaneState.RECOVERING
        assert harness.lane.counts.failed_refreshes >= 2
        harness.subject.behave()
        await harness.converge()


async def test_refreshes_that_keep_failing_open_the_circuit() -> None:
    async with LaneHarness(breaker_failures=3, breaker_reset_s=10.0) as harness:
        harness.subject.refresh_error = RuntimeError("no")
        harness.lane.refresh("test")
        await harness.pass_time(5)
        assert harness.lane.state is LaneState.BROKEN
        assert "refresh failed" in (harness.lane.reason or "")
        harness.subject.behave()
        await harness.converge()


async def test_a_registry_that_is_down_during_a_refresh_is_waited_for() -> None:
    async with LaneHarness(breaker_failures=100) as harness:
        harness.registry.down = True
        harness.lane.refresh("test")
        await harness.pass_time(5)
        assert harness.lane.state is LaneState.RECOVERING
        harness.registry.down = False
        await harness.converge()


async def test_truncate_becomes_a_refresh() -> None:
    async with LaneHarness() as harness:
        harness.commit("a", "b")
        await harness.settle()
        harness.offer(harness.registry.truncate())
        await harness.settle()
        assert harness.subject.rows[GROUPS] == {}
        assert harness.subject.refreshes == 2
        assert harness.lane.state is LaneState.LIVE


async def test_truncate_during_a_refresh_repeats_it() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.offer(harness.registry.truncate())
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.subject.refreshes == 3
        await harness.converge()


async def test_a_transaction_larger_than_the_lane_becomes_a_refresh_and_is_never_split() -> None:
    async with LaneHarness(max_events=10) as harness:
        harness.commit(*(f"g{number}" for number in range(11)))
        await harness.settle()
        assert harness.subject.events == []
        assert harness.subject.refreshes == 2
        assert harness.lane.counts.circuit_openings == 0
        await harness.converge()


async def test_a_transaction_of_more_bytes_than_the_lane_becomes_a_refresh() -> None:
    async with LaneHarness(max_bytes=1_000) as harness:
        harness.offer(harness.registry.commit(group("a"), size=1_001))
        await harness.settle()
        assert harness.subject.events == []
        await harness.converge()


async def test_transactions_after_an_oversized_one_in_the_same_batch_are_not_lost() -> None:
    async with LaneHarness() as harness:
        registry = harness.registry
        large = registry.commit(group("large"))
        large.unlisted = frozenset({GROUPS})
        harness.offer(registry.commit(group("before")), large, registry.commit(group("behind")))
        await harness.converge()
        harness.commit("later")
        await harness.settle()
        assert harness.subject.names == ["later"]


async def test_transactions_repeated_after_a_reconnect_are_not_delivered_again() -> None:
    async with LaneHarness() as harness:
        first = [harness.commit(f"g{number}") for number in range(3)]
        await harness.settle()
        harness.offer(*first, harness.registry.commit(group("new")))
        await harness.settle()
        assert harness.subject.names == ["g0", "g1", "g2", "new"]


async def test_repeated_transactions_that_are_still_queued_are_not_queued_twice() -> None:
    async with LaneHarness() as harness:
        harness.subject.misbehave(Fault.HANG)
        first = [harness.commit(f"g{number}") for number in range(3)]
        await harness.settle()
        harness.offer(*first)
        assert len(list(harness.lane.queue)) == 3


async def test_a_lane_resumes_after_its_position() -> None:
    harness = LaneHarness(resumed=True)
    old = [harness.registry.commit(group(f"old{number}")) for number in range(3)]
    async with harness:
        harness.lane.started(Position(0))
        harness.offer(*old)
        harness.commit("new")
        await harness.settle()
        assert harness.subject.names == ["new"]
        assert harness.subject.refreshes == 0


async def test_a_lane_resumes_with_its_refreshed_snapshot() -> None:
    """Killed after the refresh, before the stream had passed the snapshot."""
    harness = LaneHarness()
    registry = harness.registry
    transactions = [registry.commit(group(f"g{number}")) for number in range(4)]
    # The second and third were in the snapshot, the first had been delivered before it.
    refreshed = RefreshedSnapshot(
        XidVisibility(transactions[3].commit.transaction, frozenset()), transactions[3].position
    )
    harness.lane.restore(RestoredLane(None, transactions[0].position, refreshed))
    async with harness:
        harness.offer(*transactions)
        await harness.settle()
        assert harness.subject.names == ["g3"]


async def test_killed_in_the_first_delivery_after_a_refresh_it_does_not_repeat_what_the_refresh_contained() -> None:
    """Until the component, not only the stream, has passed the snapshot, the ledger has to keep its visibility."""
    async with LaneHarness() as harness:
        early = harness.registry.commit(group("early"))
        harness.lane.refresh("test")
        await harness.settle()
        harness.subject.misbehave(Fault.HANG)
        late = harness.registry.commit(group("late"))
        harness.offer(early, late)
        await harness.settle()
        ledger = Ledger(harness.registry.store, harness.clock)
        await ledger.write(lambda: [harness.lane.progress()], harness.registry.last, LEASE)
        assert harness.subject.names == []
    after = LaneHarness()
    restored = await Ledger(harness.registry.store, after.clock).open([after.lane.progress()])
    after.lane.restore(restored["subject"])
    async with after:
        after.offer(early, late)
        await after.settle()
        assert after.subject.names == ["late"]
        assert after.subject.refreshes == 0


async def test_a_source_that_continues_after_a_components_position_makes_it_refresh() -> None:
    async with LaneHarness() as harness:
        harness.commit("a")
        await harness.settle()
        harness.registry.commit(group("never streamed"))
        harness.lane.started(harness.registry.last)
        await harness.settle()
        assert harness.subject.refreshes == 2
        await harness.converge()


async def test_a_source_that_continues_where_the_lane_has_received_to_does_not() -> None:
    """Even if the component has not done all of it yet: the rest is in its queue."""
    async with LaneHarness() as harness:
        harness.subject.misbehave(Fault.HANG)
        transaction = harness.commit("a")
        await harness.settle()
        assert harness.lane.position < transaction.position
        harness.lane.started(transaction.position)
        assert harness.lane.state is LaneState.LIVE
        assert len(list(harness.lane.queue)) == 1


async def test_a_source_that_leaves_out_something_during_a_refresh_repeats_it() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.registry.commit(group("never streamed"))
        harness.lane.started(harness.registry.last)
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.subject.refreshes == 3
        await harness.converge()


async def test_another_history_makes_components_refresh_and_restarts_positions() -> None:
    async with LaneHarness() as harness:
        harness.commit("old")
        await harness.settle()
        harness.registry.last = Position(0)
        harness.router.start_over()
        harness.lane.start_over("restored")
        harness.lane.started(Position(0))
        await harness.settle()
        harness.commit("new")
        await harness.settle()
        assert harness.subject.refreshes == 2
        assert harness.subject.names == ["old", "new"], "a position below the old ones is not a repetition"
        assert harness.lane.position == harness.registry.last


async def test_another_history_during_a_refresh_repeats_it() -> None:
    async with LaneHarness() as harness:
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        harness.lane.start_over("restored")
        harness.subject.refresh_gate.set()
        await harness.settle()
        assert harness.subject.refreshes == 3


async def test_no_refresh_begins_before_it_is_owed_in_the_ledger() -> None:
    """Otherwise a crash resumes from the position before the refresh."""
    async with LaneHarness() as harness:
        harness.persisting = False
        harness.lane.refresh("test")
        await harness.pass_time(5)
        assert harness.subject.refreshes == 1
        harness.persisting = True
        await harness.converge()
        assert harness.subject.refreshes == 2


async def test_no_refresh_without_a_valid_lease() -> None:
    async with LaneHarness() as harness:
        harness.leading = False
        harness.lane.refresh("test")
        await harness.pass_time(5)
        assert harness.subject.refreshes == 1
        harness.leading = True
        await harness.converge()
        assert harness.subject.refreshes == 2


def test_snapshot_visibility_is_decided_by_transaction_not_by_position() -> None:
    """PostgreSQL: a commit at a lower position may be missing from the snapshot, one at a higher may be in it."""
    refreshed = RefreshedSnapshot(XidVisibility(100, frozenset({90})), Position(5_000))
    assert refreshed.contains(_transaction(xid=80, position=4_000))
    assert not refreshed.contains(_transaction(xid=90, position=1_000)), "running when the snapshot was taken"
    assert not refreshed.contains(_transaction(xid=100, position=1_000))
    assert not refreshed.contains(_transaction(xid=80, position=5_001)), "beyond: another transaction with that number"
    assert RefreshedSnapshot.from_json(refreshed.to_json()) == refreshed
    sequence = RefreshedSnapshot(SequenceVisibility(Position(7)), Position(7))
    assert RefreshedSnapshot.from_json(sequence.to_json()) == sequence


def test_transaction_ids_of_32_bits_are_widened_to_the_snapshots_age() -> None:
    age = 3 << 32
    visibility = XidVisibility(age + 10, frozenset({age - 5}))
    assert visibility.contains(9, Position(1))
    assert not visibility.contains(10, Position(1))
    assert not visibility.contains((age - 5) & 0xFFFFFFFF, Position(1))
    assert visibility.contains((age - 6) & 0xFFFFFFFF, Position(1))
    almost = XidVisibility(age - 2, frozenset())
    assert not almost.contains(3, Position(1)), "after the wrap"


def _transaction(*, xid: int, position: int) -> Transaction:
    commit = Commit(xid, Position(position), 0, 1)
    return Transaction(commit, [Event(Operation.INSERT, group("a"), None, commit, 0)], frozenset({GROUPS}))


async def test_a_refresh_that_contains_a_part_of_a_joined_transaction_is_repeated() -> None:
    """SQLite: unannounced commits that are read together are one transaction; a snapshot may contain its first part."""
    async with LaneHarness() as harness:
        registry = harness.registry
        first = registry.commit(group("first"))
        harness.lane.refresh("test")
        await harness.settle()
        assert harness.subject.refreshes == 2, "the snapshot has the first commit"
        second = registry.commit(group("second"))
        joined = Transaction(
            Commit(-first.position, second.position, 0, 2), [*first.events, *second.events], frozenset({GROUPS})
        )
        harness.offer(joined)
        await harness.converge()
        assert harness.subject.events == [], "neither is delivered after a refresh that contains it"
        assert harness.subject.refreshes == 3


async def test_a_joined_transaction_that_arrives_during_the_refresh_repeats_it() -> None:
    async with LaneHarness() as harness:
        registry = harness.registry
        first = registry.commit(group("first"))
        harness.subject.refresh_gate = asyncio.Event()
        harness.lane.refresh("test")
        await harness.settle()
        second = registry.commit(group("second"))
        harness.offer(
            Transaction(
                Commit(-first.position, second.position, 0, 2), [*first.events, *second.events], frozenset({GROUPS})
            )
        )
        harness.subject.refresh_gate.set()
        await harness.converge()
        assert harness.subject.events == []
        assert harness.subject.refreshes == 3


async def test_a_table_without_subscription_only_moves_the_position() -> None:
    """A table that the lane does not subscribe to moves its position, and nothing else."""
    harness = LaneHarness(Subject(ManualClock()))
    async with harness:
        harness.router.passed(Position(500))
        assert harness.lane.position == 500
        assert harness.subject.events == []
