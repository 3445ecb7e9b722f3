"""How the daemon handles what its source sends, and the end of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.errors import ConfigError, SourceError
from astha.lanes.state import LaneState
from astha.leadership import Leadership, LeaseSettings
from astha.sources.contract import Gap, Progress, Started
from astha.subscribers.lane_policy import LanePolicy
from astha.tasks import cancel_and_wait
from astha.testing import Fault, FaultySubscriber
from registry.models import ConsumerGroup
from registry.position import Position
from tests.doubles.registry import GROUPS, SmallRegistry, group
from tests.doubles.source import ScriptedSource
from tests.waiting import eventually


class Stage:
    def __init__(self) -> None:
        self.registry = SmallRegistry()
        self.source = ScriptedSource()
        self.subject = FaultySubscriber(GROUPS)
        clock = SystemLoopClock()
        policy = LanePolicy(drain_timeout_s=0.1, breaker_reset_s=0.05, backoff_initial_s=0.01)
        self.daemon = Daemon(
            self.registry.store,
            self.source,
            [NamedSubscriber("a", self.subject, policy)],
            Leadership(self.registry.store, LeaseSettings(ttl_s=1.0), "test", clock),
            DaemonSettings(ledger_interval_s=0.01, shutdown_timeout_s=1.0),
            clock,
        )
        self.task = asyncio.create_task(self.daemon.run())

    def commit(self, *names: str) -> None:
        self.source.say([self.registry.commit(*(group(name, self.registry.last) for name in names))])

    async def live(self) -> None:
        await self.until(lambda: self.daemon.lanes[0].state is LaneState.LIVE, "the lane live")

    async def agree(self) -> None:
        await self.until(lambda: self.subject.rows[GROUPS] == self.registry.rows[ConsumerGroup], "agreement")

    async def until(self, condition: object, what: str) -> None:
        def holds() -> bool:
            if self.task.done():
                self.task.result()
            return bool(condition())  # type: ignore[operator]

        await eventually(holds, what, 20)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.subject.released.set()
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_nothing_happens_before_the_stream_has_started() -> None:
    async with stage() as made:
        await made.until(lambda: made.source.streams == 1, "the stream")
        await asyncio.sleep(0.05)
        assert made.subject.refreshes == 0
        made.source.say(Started(Position(0)))
        await made.live()


async def test_a_gap_to_a_history_with_lower_positions() -> None:
    """A dump restored elsewhere: its positions are lower than all known ones, and are not repetitions."""
    async with stage() as made:
        made.registry.last = Position(1_000_000)
        made.source.say(Started(Position(1_000_000)))
        await made.live()
        made.commit("old")
        await made.agree()
        await made.until(lambda: max(made.source.acknowledged, default=0) > 1_000_000, "an acknowledgement")
        made.registry.last = Position(0)
        before = len(made.source.acknowledged)
        made.source.say(Gap("restored"), Started(Position(0)))
        await made.until(lambda: made.subject.refreshes == 2, "the refresh")
        made.commit("new")
        await made.agree()
        await made.until(lambda: made.source.acknowledged[-1] == made.registry.last, "the new position")
        assert max(made.source.acknowledged[before:]) == made.registry.last, "never a position of the old history"


async def test_after_a_gap_refreshes_are_owed_in_the_ledger_before_the_source_continues() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        await made.until(lambda: not made.registry.ledger["a"].refresh_owed, "the ledger entry")
        made.registry.before_ledger = asyncio.Event()
        taken = made.source.taken
        made.source.say(Gap("test"), Started(Position(0)))
        await asyncio.sleep(0.05)
        assert made.source.taken == taken
        made.registry.before_ledger.set()
        await made.until(lambda: made.source.taken > taken, "the source going on")
        await made.live()


async def test_a_gap_while_the_registry_is_down_waits_for_it() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        made.registry.down = True
        made.source.say(Gap("test"), Started(Position(0)))
        await asyncio.sleep(0.05)
        made.registry.down = False
        await made.until(lambda: made.subject.refreshes == 2, "the refresh")


async def test_progress_moves_an_idle_component() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        made.source.say(Progress(Position(5_000_000)))
        await made.until(lambda: max(made.source.acknowledged, default=0) == 5_000_000, "the acknowledgement")
        made.source.say(Progress(Position(100)))  # a keepalive that was overtaken
        await asyncio.sleep(0.05)
        assert made.daemon.received == 5_000_000


async def test_an_error_that_an_operator_has_to_fix_ends_the_daemon() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)), ConfigError("fix me"))
        with pytest.raises(ConfigError, match="fix me"):
            await asyncio.wait_for(made.task, 20)
        assert not made.daemon.leadership.leads, "a standby may try"


async def test_a_stream_that_ends_unexpectedly_is_an_error() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)), None)
        with pytest.raises(SourceError):
            await asyncio.wait_for(made.task, 20)


async def test_a_background_task_that_fails_ends_the_daemon_and_leaves_nothing_running() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()

        def fail() -> None:
            raise ArithmeticError("a fault of ours")

        made.daemon._enforce_wal_budget = fail  # type: ignore[method-assign]
        with pytest.raises(ArithmeticError):
            await asyncio.wait_for(made.task, 20)
        await asyncio.sleep(0)
        assert not made.source.open
        assert {task.get_name() for task in asyncio.all_tasks()} & {"source", "lease", "ledger", "a: lane"} == set()


async def test_after_leadership_is_lost_the_daemon_stands_by_and_leads_again() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        first = made.daemon.lanes[0]
        made.registry.epoch += 1  # another daemon has taken over
        await made.until(lambda: made.source.streams == 2, "the next term")
        made.source.say(Started(Position(0)))
        await made.live()
        assert made.daemon.lanes[0] is not first
        made.commit("a")
        await made.agree()


async def test_a_registry_that_is_down_at_the_start_is_waited_for() -> None:
    made = Stage()
    made.registry.down = True
    await asyncio.sleep(0.05)
    made.registry.down = False
    made.source.say(Started(Position(0)))
    await made.live()
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_the_last_acknowledgement_goes_through_the_open_connection() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        made.subject.misbehave(Fault.SLOW, seconds=0.1)
        made.commit("a")
        await made.until(lambda: made.daemon.lanes[0].queue, "the event")
        made.daemon.stop()
        await asyncio.wait_for(made.task, 20)
        assert made.source.acknowledged[-1] == made.registry.last
        assert made.registry.ledger["a"].position == made.registry.last


async def test_transactions_that_arrive_after_stop_are_left_for_the_next_start() -> None:
    async with stage() as made:
        made.source.say(Started(Position(0)))
        await made.live()
        made.commit("a")
        await made.agree()
        made.daemon.stop()
        made.commit("b")
        await asyncio.wait_for(made.task, 20)
        assert [event.data for event in made.subject.events] == [group("a")]
        assert made.source.acknowledged[-1] < made.registry.last


async def test_a_cancellation_waits_for_the_tasks_that_are_being_cancelled() -> None:
    """Tasks left behind would continue without leadership and keep their connections."""
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asked.set()
            await may_end.wait()

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    ending = asyncio.create_task(cancel_and_wait(task))
    await asked.wait()
    for _ in range(2):
        ending.cancel()
        await asyncio.sleep(0)
        assert not ending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.done()
