"""A lane on the harness: a small registry, a clock that the test moves, a component that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from astha.events import Event, Transaction
from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
from astha.lanes.state import LaneContext, LaneState
from astha.routing.router import Router
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import FaultySubscriber, ManualClock
from registry.contract import ConsistentRead
from registry.models import ConsumerGroup, Row
from tests.doubles.registry import GROUPS, SmallRegistry, group
from tests.waiting import eventually


class Subject(FaultySubscriber):
    """Notes when it was called, and that it never was twice at once."""

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
        assert self._subject.inside == 1, "called while another call was under way"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subject.inside -= 1


class LaneHarness:
    """``async with LaneHarness(...) as harness``: the lane runs, and has been refreshed."""

    def __init__(self, subject: Subject | None = None, *, resumed: bool = False, **policy: Any) -> None:
        self.clock = subject.clock if subject else ManualClock()
        self.subject = subject or Subject(self.clock)
        self.registry = SmallRegistry()
        self.leading = True
        self.failures = FailureLog(self.clock)
        self.changes = 0
        self.paper: asyncio.Event | None = None  # refreshes wait until their debt is on it
        self.lane = self.make_lane("subject", self.subject, **policy)
        self.lanes = [self.lane]
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
            indebted=self._indebted,
            failures=self.failures,
        )
        return Lane(name, subject, subject.subscribed_tables, LanePolicy(**values), context)

    def add(self, name: str, subject: Subject, **policy: Any) -> Lane:
        lane = self.make_lane(name, subject, **policy)
        self.lanes.append(lane)
        self.router = Router(self.lanes)
        return lane

    async def __aenter__(self) -> LaneHarness:
        if self._resumed:
            self.lane.resume_at(self.registry.last, None)
        self._tasks = [asyncio.create_task(lane.run()) for lane in self.lanes]
        for lane in self.lanes:
            await self.reach(LaneState.LIVE, lane)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self.lanes:
            subject = lane._subscriber
            assert isinstance(subject, FaultySubscriber)
            subject.released.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def offer(self, *transactions: Transaction) -> None:
        """All of them received together."""
        self.router.route(transactions)

    def commit(self, *names: str) -> Transaction:
        """One transaction with a new version of each group, committed and brought by the stream."""
        transaction = self.registry.commit(*(group(name, self.registry.last) for name in names))
        self.offer(transaction)
        return transaction

    async def settle(self) -> None:
        """Everybody who can do something without time passing does it."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def reach(self, state: LaneState, lane: Lane | None = None) -> None:
        """Without time passing on the clock."""
        found = lane or self.lane
        await eventually(lambda: found.state is state, f"{found.name} {state}: it is {found.state}, {found.reason}", 10)

    async def converge(self) -> None:
        """However long it takes on the clock: live, nothing waits, and the rows are the registry's."""
        for _ in range(2_000):
            await self.pass_time(0.25)
            if self.lane.state is LaneState.LIVE and not self.lane.queue:
                break
        assert self.lane.state is LaneState.LIVE, self.lane.reason
        assert self.subject.rows[GROUPS] == self.registry.rows[ConsumerGroup]

    def _changed(self) -> None:
        self.changes += 1

    async def _indebted(self, name: str) -> None:
        if self.paper is not None:
            await self.paper.wait()
