"""A lane: the queue and the state of one component.

    bootstrapping -> live -> broken -> recovering -> live        paused: until an operator resumes it
                     live -> held -> live                        with `on_exhausted: hold`, instead of broken

Everything here is synchronous and never waits. The component's calls are made by one task, see `LaneWorker`.
"""

from __future__ import annotations

import asyncio

import structlog

from astha.backoff import Backoff
from astha.events import EventBatch, Transaction
from astha.lanes.breaker import Breaker
from astha.lanes.calls import Calls
from astha.lanes.error_policy import treatment
from astha.lanes.health import HealthCheck
from astha.lanes.intake import Intake, RefusedTransaction
from astha.lanes.queue import LaneQueue
from astha.lanes.spans import LaneSpans
from astha.lanes.state import (
    LaneContext,
    LaneCounts,
    LaneFailure,
    LaneProgress,
    LaneState,
    LaneStatus,
    RestoredLane,
)
from astha.subscribers.contract import Subscriber, is_durable
from astha.subscribers.lane_policy import LanePolicy
from registry.position import Position

log = structlog.get_logger(__name__)

_MAX_ERROR = 500


class Lane:
    def __init__(
        self, name: str, subscriber: Subscriber, tables: frozenset[str], policy: LanePolicy, context: LaneContext
    ) -> None:
        self.name = name
        self.subscriber = subscriber
        self.tables = tables
        self.policy = policy
        self.context = context
        self.clock = context.clock
        self.status = LaneStatus(name, self.clock, context.changed)
        self.intake = Intake(policy, self.clock)
        self.calls = Calls(name, policy, self.clock)
        self.breaker = Breaker(name, policy.breaker_failures, policy.breaker_reset_s, self.clock)
        self.backoff = Backoff(policy.backoff_initial_s, policy.backoff_max_s)
        self.health = HealthCheck(name, subscriber, policy.health_timeout_s, context.failures)
        self.counts = LaneCounts()
        self.spans = None if context.tracing is None else LaneSpans(name, context.tracing)
        self.refresh_owed_persisted = asyncio.Event()
        self.start_began: float | None = None
        self.refresh_began: float | None = None  # when the `on_refresh` in flight was called
        self.serving = False  # `start` has ended: calls are made
        self.yielding = False  # the worker has more to do and lets other tasks run first
        self.held_attempts = 0
        self.failure: LaneFailure | None = None  # of the calls since the last success
        self._times_live = 0

    @property
    def state(self) -> LaneState:
        return self.status.state

    @property
    def reason(self) -> str | None:
        return self.status.reason

    @property
    def position(self) -> Position:
        """Everything up to here is done."""
        return self.intake.position

    @property
    def queue(self) -> LaneQueue:
        return self.intake.queue

    @property
    def holds(self) -> bool:
        return self.policy.on_exhausted == "hold"

    @property
    def oldest_queued_s(self) -> float:
        """The age of the oldest commit in the queue; 0 if it is empty."""
        if not self.queue:
            return 0.0
        return max(0.0, (self.clock.now_ms() * 1000 - self.queue.first().commit.committed_at) / 1e6)

    def failed(self, call: str, error: BaseException, attempt: int, wait_s: float) -> None:
        """Remembers the failure for the operator."""
        text = f"{type(error).__name__}: {error}" if str(error) else repr(error)
        self.failure = LaneFailure(
            call, text[:_MAX_ERROR], treatment(error).hint, attempt, self.policy.attempts, self.clock.now_ms(),
            self.clock.monotonic() + wait_s,
        )  # fmt: skip

    def wants_delivery(self) -> bool:
        """False if the circuit was opened, the lane paused, a refresh requested or the lane ended."""
        return self.state.keeps_position() and not self.calls.ended

    def offer(self, batch: EventBatch) -> None:
        """Receives transactions in order, with only the events of this lane's tables."""
        if (refused := self.intake.offer(batch)) is not None:
            self.refuse(refused)
        elif self.intake.queue:
            self.status.wake.set()

    def passed(self, position: Position) -> None:
        """The stream has come this far without anything for this lane."""
        intake = self.intake
        intake.received = max(intake.received, position)
        if not intake.queue and self.state.keeps_position() and not intake.behind:
            intake.advance(intake.received)

    def start_over(self, reason: str) -> None:
        """Another history begins: nothing known so far holds."""
        self.intake.start_over()
        if self.state.keeps_position():
            self._leave(LaneState.RECOVERING, reason)
        else:
            self.intake.stop_collecting(reason)

    def started(self, position: Position) -> None:
        """The stream brings everything after `position`: refreshes if that leaves out something for this lane."""
        if (received := self.intake.started_at(position)) is not None:
            self.refresh(f"the source continues at {position}, this component had received up to {received}")

    def refuse(self, refused: RefusedTransaction) -> None:
        if refused.overflow is None:
            self.refresh(refused.reason)
        else:
            self._overflow(refused.overflow)

    def _overflow(self, transaction: Transaction) -> None:
        events, size = len(transaction.events), transaction.size_bytes
        if not self.state.keeps_position():
            self.refresh("more was written during the refresh than the queue holds")
        elif events > self.policy.max_events or size > self.policy.max_bytes:
            self.refresh(f"a transaction of {events} events ({size} bytes) is larger than the lane")
        elif self.holds:
            self.intake.behind = True
            if self.state is LaneState.LIVE:
                self.status.enter(LaneState.LIVE, "its queue was full: what follows is read again from the database")
        else:
            queued = f"{self.queue.events} events ({self.queue.size_bytes} bytes) wait"
            self.open_circuit(f"queue full: {queued}, and a transaction of {events} more does not fit")

    def progress(self) -> LaneProgress:
        return LaneProgress(
            self.name, self.tables, is_durable(self.subscriber), self.state, self.reason, self.position,
            self.intake.refreshed, self.calls.made - self.counts.refresh_calls, self._times_live,
        )  # fmt: skip

    def persisted_refresh_owed(self, progress: LaneProgress) -> None:
        """The ledger says, from this progress, that the component owes a refresh."""
        if progress.times_live == self._times_live and not progress.state.keeps_position():
            self.refresh_owed_persisted.set()

    def restore(self, restored: RestoredLane) -> None:
        """Continues where the ledger says that the component stopped, or says why it owes a refresh."""
        if restored.position is not None:
            self.intake.resume_at(restored.position, restored.refreshed)
            self.go_live()
        elif restored.paused:
            self.pause()
        else:
            self.status.reason = restored.reason

    def go_live(self) -> None:
        """No refresh is owed any more."""
        self._times_live += 1
        self.failure = None
        self.refresh_owed_persisted.clear()
        self.status.enter(LaneState.LIVE, None)

    def open_circuit(self, reason: str) -> None:
        """Takes the component out of service: nothing is kept for it, and it recovers by a refresh. A component that
        holds keeps its position.
        """
        if self.state in (LaneState.BROKEN, LaneState.PAUSED, LaneState.HELD):
            return
        if self.holds and self.state.keeps_position():
            self.hold(reason)
        else:
            self.force_open_circuit(reason)

    def force_open_circuit(self, reason: str) -> None:
        """As `open_circuit`, also if the component holds: the database can't keep more for it."""
        self.breaker.open()
        self.counts.circuit_openings += 1
        self._leave(LaneState.BROKEN, reason)

    def hold(self, reason: str) -> None:
        """Drops nothing: the database keeps what follows the event that could not be delivered."""
        if self.state is not LaneState.HELD:
            self.counts.circuit_openings += 1
            self.held_attempts = 0
        self.breaker.open()
        self.status.enter(LaneState.HELD, reason)
        self.calls.release()

    def refresh(self, reason: str) -> None:
        """Discards the queue and reads the registry instead."""
        if self.state.refreshes():
            self.intake.stop_collecting(reason)
        elif self.state is not LaneState.PAUSED:
            self._leave(LaneState.RECOVERING, reason)

    def pause(self) -> None:
        self._leave(LaneState.PAUSED, "paused by an operator")

    def resume(self) -> None:
        if self.state is LaneState.PAUSED:
            self._leave(LaneState.RECOVERING, "resumed by an operator")

    def _leave(self, state: LaneState, reason: str) -> None:
        if self.holds and self.state.keeps_position():
            log.error("component loses events that it wanted to hold", component=self.name, reason=reason)
            self.counts.dropped += 1
        was_live, behind_s = self.state is LaneState.LIVE, self.oldest_queued_s
        self.intake.stop_collecting(reason)
        self.status.enter(state, reason)
        if was_live and self.status.not_live_since is not None:
            self.status.not_live_since -= behind_s  # the component lags as before, although its queue is gone
        self.calls.release()
