"""What a lane can be in, what it counts, and what it needs of the daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum

import msgspec

from astha.clock import LoopClock
from astha.events import Commit, EventBatch
from astha.lanes.failures import FailureLog
from astha.sources.contract import Replay
from registry.contract import MetadataStore
from registry.position import Position


class LaneState(StrEnum):
    BOOTSTRAPPING = "bootstrapping"
    LIVE = "live"
    HELD = "held"  # can't deliver now, and gives nothing up: its position is kept, and the source with it
    BROKEN = "broken"
    RECOVERING = "recovering"
    PAUSED = "paused"

    def keeps_position(self) -> bool:
        """Whether the source keeps what comes after the component's position."""
        return self in (LaneState.LIVE, LaneState.HELD)

    def refreshes(self) -> bool:
        return self in (LaneState.BOOTSTRAPPING, LaneState.RECOVERING)


class LaneCounts(msgspec.Struct):
    """For metrics; only ever grow."""

    delivered: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # (table, operation)
    dropped: int = 0
    refreshes: int = 0
    failed_refreshes: int = 0
    broken: int = 0
    latency_us: Counter[int] = msgspec.field(default_factory=Counter)  # power of two -> transactions
    latency_sum_us: int = 0

    def count(self, batch: EventBatch, now_ms: int) -> None:
        """It has been delivered. The latency is that of its oldest commit."""
        delivered = self.delivered
        for kind, number in batch.tally().items():
            delivered[kind] += number
        latency, transactions = max(0, now_ms * 1000 - batch.first.commit.committed_at), len(batch.transactions)
        self.latency_us[latency.bit_length()] += transactions
        self.latency_sum_us += latency * transactions


class LaneContext(msgspec.Struct, frozen=True):
    """What a lane needs of the daemon."""

    store: MetadataStore
    clock: LoopClock
    recent: Callable[[], Iterable[Commit]]  # transactions that the stream has brought lately
    may_deliver: Callable[[], bool]  # False once leadership is in doubt
    changed: Callable[[], None]  # a state changed: write the ledger
    indebted: Callable[[str], Awaitable[None]]  # waits until the ledger says that this lane owes a refresh
    failures: FailureLog
    replay: Callable[[frozenset[str], Position], Replay] | None = None  # reads again what the database still keeps
