"""The state of a lane, what it counts, what it reports to the ledger, and what it needs from the daemon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
import structlog

from astha.clock import LoopClock
from astha.events import Commit, EventBatch
from astha.lanes.failures import FailureLog
from astha.lanes.snapshot import RefreshedSnapshot
from astha.sources.contract import Replay
from astha.subscribers.contract import ResumesAtPosition, Subscriber
from astha.tracing import Tracing
from registry.contract import MetadataStore
from registry.position import Position

log = structlog.get_logger(__name__)


class LaneState(StrEnum):
    BOOTSTRAPPING = "bootstrapping"
    LIVE = "live"
    HELD = "held"  # can't deliver now and drops nothing: its position is kept, and the source keeps what follows
    BROKEN = "broken"  # its circuit is open
    RECOVERING = "recovering"
    PAUSED = "paused"

    def keeps_position(self) -> bool:
        """Whether the source keeps what follows the component's position."""
        return self in (LaneState.LIVE, LaneState.HELD)

    def refreshes(self) -> bool:
        return self in (LaneState.BOOTSTRAPPING, LaneState.RECOVERING)


class LaneStatus:
    """The current state and the reason for it. Each change is logged and wakes the worker and the ledger."""

    def __init__(self, name: str, clock: LoopClock, changed: Callable[[], None]) -> None:
        self._name = name
        self._clock = clock
        self._changed = changed
        self.state = LaneState.BOOTSTRAPPING
        self.reason: str | None = "never refreshed"
        self.not_live_since: float | None = clock.monotonic()
        self.wake = asyncio.Event()

    def enter(self, state: LaneState, reason: str | None) -> None:
        if state is self.state and reason == self.reason:
            return
        level = log.info if state in (LaneState.LIVE, LaneState.BOOTSTRAPPING) else log.warning
        if state is LaneState.HELD:
            level = log.error
        level(_LOG_EVENTS[state], component=self._name, previous=str(self.state), reason=reason)
        if state is LaneState.LIVE:
            self.not_live_since = None
        elif self.state is LaneState.LIVE:
            self.not_live_since = self._clock.monotonic()
        self.state, self.reason = state, reason
        self.wake.set()
        self._changed()


_LOG_EVENTS = {
    LaneState.BOOTSTRAPPING: "component is bootstrapping",
    LaneState.LIVE: "component is live",
    LaneState.HELD: "component is held",
    LaneState.BROKEN: "component circuit opened",
    LaneState.RECOVERING: "component is recovering",
    LaneState.PAUSED: "component is paused",
}


class LaneFailure(msgspec.Struct, frozen=True):
    """The last failed call of a component that has not succeeded since."""

    call: str  # delivery or refresh
    error: str
    hint: str  # for the operator
    attempt: int  # failures in a row
    attempts: int  # the limit
    at_ms: int
    next_at: float  # monotonic


class LaneCounts(msgspec.Struct):
    """For metrics: never decrease."""

    delivered: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # (table, operation)
    dropped: int = 0
    refreshes: int = 0
    failed_refreshes: int = 0
    circuit_openings: int = 0  # and holds, which open it too
    failed_deliveries: int = 0
    refresh_calls: int = 0
    latency_us: Counter[int] = msgspec.field(default_factory=Counter)  # power of two -> transactions
    latency_sum_us: int = 0

    def count(self, batch: EventBatch, now_ms: int) -> None:
        """Counts a delivered batch. Its latency is that of its oldest commit."""
        delivered = self.delivered
        for kind, number in batch.tally().items():
            delivered[kind] += number
        latency, transactions = max(0, now_ms * 1000 - batch.first.commit.committed_at), len(batch.transactions)
        self.latency_us[latency.bit_length()] += transactions
        self.latency_sum_us += latency * transactions


class LaneProgress(msgspec.Struct, frozen=True):
    """A lane's progress at one moment, for the ledger."""

    component: str
    tables: frozenset[str]
    durable: bool
    state: LaneState
    reason: str | None
    position: Position
    refreshed: RefreshedSnapshot | None
    deliveries: int
    times_live: int  # tells a refresh that is owed now from one that was owed before the lane was live


class RestoredLane(msgspec.Struct, frozen=True):
    """What the ledger says about a component at the start. Without a position it owes a refresh."""

    reason: str | None
    position: Position | None = None
    refreshed: RefreshedSnapshot | None = None
    paused: bool = False


class LaneContext(msgspec.Struct, frozen=True):
    """What a lane needs from the daemon."""

    store: MetadataStore
    clock: LoopClock
    recent: Callable[[], Iterable[Commit]]  # the commits that the stream brought last
    may_deliver: Callable[[], bool]  # False if another daemon may lead by now
    changed: Callable[[], None]  # called after each change of state: the ledger has to be written
    failures: FailureLog
    epoch: Callable[[], int]  # of the lease
    replay: Callable[[frozenset[str], Position], Replay] | None = None  # reads the stream again from a position
    tracing: Tracing | None = None

    def resume(self, subscriber: Subscriber, position: Position) -> None:
        """All later deliveries to this subscriber have positions above this one."""
        if isinstance(subscriber, ResumesAtPosition):
            subscriber.resume_at(position, self.epoch())
