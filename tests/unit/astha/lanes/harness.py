"""Runs lanes in a test: a small registry, a clock that the test moves, a component that fails on request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from astha.events import Event, Transaction
from astha.lanes.delivery import Delivery
from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
from astha.lanes.state import LaneContext, LaneState, RestoredLane
from astha.lanes.worker import LaneWorker
from astha.routing.router import Router
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import FaultySubscriber, ManualClock
from astha.tracing import Tracing
from registry.contract import ConsistentRead
from registry.models import ConsumerGroup, Row
from tests.doubles.registry import GROUPS, SmallRegistry, group
from tests.waiting import eventually


class Subject(FaultySubscriber):
    """Records when it was called, and checks that it is never called twice at once."""

    def __init__(self, clock: ManualClock, *tables: str, whole_transactions: bool = False) -> None:
        super().__init__(*(tables or (GROUPS,)), whole_transactions=whole_transactions)
        self.clock = clock
        self.calls: list[float] = []
        self.refreshed_at: list[float] = []
        self.inside = 0
        self.refresh_gate: asyncio.Event | None = None

    @property
    def names(self) -> list[str]:
        return [event.data.group_id for event in self.events if isinstance(event.data, ConsumerGroup)]

    async def on_event(self, event: Event[Row]) -> None:
        with OneCallAtATime(self):
            self.calls.append(self.clock.monotonic())
            await super().on_event(event)

    async def _on_transaction(self, events: Sequence[Event[Row]]) -> None:
        with OneCallAtATime(self):
            self.calls.append(self.clock.monotonic())
            await super()._on_transaction(events)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        with OneCallAtATime(self):
            self.refreshed_at.append(self.clock.monotonic())
            if self.refresh_gate is not None:
                await self.refresh_gate.wait()
            await super().on_refresh(snapshot)


class OneCallAtATime:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        self._subject.inside += 1
        assert self._subject.inside == 1, "called while another call was in flight"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subject.inside -= 1


class LaneHarness:
    """``async with LaneHarness(...) as harness``: the lane runs and has been refreshed."""

    def __init__(
        self, subject: Subject | None = None, *, resumed: bool = False, tracing: Tracing | None = None, **policy: Any
    ) -> None:
        self.tracing = tracing
        self.clock = subject.clock if subject else ManualClock()
        self.subject = subject or Subject(self.clock)
        self.registry = SmallRegistry()
        self.leading = True
        self.epoch = 1
        self.failures = FailureLog(self.clock)
        self.changes = 0
        self.persisting = True  # whether the ledger is written, so that refreshes may begin
        self.workers: dict[str, LaneWorker] = {}
        self.lanes: list[Lane] = []
        self.lane = self.make_lane("subject", self.subject, **policy)
        self.lanes.append(self.lane)
        self.router = Router(self.lanes)
        self._resumed = resumed
        self._tasks: list[asyncio.Task[None]] = []

    def make_lane(self, name: str, subject: Subject, **policy: Any) -> Lane:
        values = {"drain_timeout_s": 0.5, "health_timeout_s": 0.2, **policy}
        context = LaneContext(
            store=self.registry.store,
            clock=self.clock,
            recent=lambda: self.router.recent(),
            may_deliver=lambda: self.leading,
            changed=self._changed,
            failures=self.failures,
            epoch=lambda: self.epoch,
            tracing=self.tracing,
        )
        lane = Lane(name, subject, subject.subscribed_tables, LanePolicy(**values), context)
        self.workers[name] = LaneWorker(lane)
        return lane

    @property
    def delivery(self) -> Delivery:
        return self.workers["subject"].delivery

    def add(self, name: str, subject: Subject, **policy: Any) -> Lane:
        lane = self.make_lane(name, subject, **policy)
        self.lanes.append(lane)
        self.router = Router(self.lanes)
        return lane

    async def __aenter__(self) -> LaneHarness:
        if self._resumed:
            self.lane.restore(RestoredLane(None, self.registry.last))
        self.persist()
        self._tasks = [asyncio.create_task(self.workers[lane.name].run()) for lane in self.lanes]
        for lane in self.lanes:
            await self.reach(LaneState.LIVE, lane)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self.lanes:
            subject = lane.subscriber
            assert isinstance(subject, FaultySubscriber)
            subject.released.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def offer(self, *transactions: Transaction) -> None:
        """Routes all of them in one batch."""
        self.router.route(transactions)
        if self.tracing is not None:
            self.tracing.observe(transactions)

    def commit(self, *names: str) -> Transaction:
        """One transaction with a new version of each group, committed and brought by the stream."""
        transaction = self.registry.commit(*(group(name, self.registry.last) for name in names))
        self.offer(transaction)
        return transaction

    async def settle(self) -> None:
        """Lets all tasks run as far as they can without time passing."""
        self.persist()
        for _ in range(50):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def reach(self, state: LaneState, lane: Lane | None = None) -> None:
        """Waits without moving the clock."""
        self.persist()
        found = lane or self.lane
        await eventually(lambda: found.state is state, f"{found.name} {state}: it is {found.state}, {found.reason}", 10)

    async def converge(self) -> None:
        """Advances the clock until the lane is live with an empty queue; its rows are the registry's then."""
        for _ in range(2_000):
            await self.pass_time(0.25)
            if self.lane.state is LaneState.LIVE and not self.lane.queue:
                break
        assert self.lane.state is LaneState.LIVE, self.lane.reason
        assert self.subject.rows[GROUPS] == self.registry.rows[ConsumerGroup]

    def _changed(self) -> None:
        self.changes += 1
        self.persist()

    def persist(self) -> None:
        """As the daemon does after it has written the ledger."""
        if self.persisting:
            for lane in self.lanes:
                lane.persisted_refresh_owed(lane.progress())
