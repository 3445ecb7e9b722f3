"""Decides which commits are traced: a ratio of them, and at most so many per second."""

from __future__ import annotations

from collections.abc import Sequence

from astha.clock import LoopClock
from astha.events import Transaction
from astha.tracing.trace_ids import MASK, MULTIPLIER


class CommitSampler:
    """The ratio is decided by position, so that daemons with the same ratio choose the same commits. A commit that came
    with a trace context is traced if its sender says so. The limit per second is a token bucket that holds one second.
    """

    def __init__(self, ratio: float, per_second: float, clock: LoopClock) -> None:
        self._below = round(ratio * (1 << 64))
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._tokens = self._most
        self._clock = clock
        self._filled_at = clock.monotonic()

    def choose(self, transactions: Sequence[Transaction]) -> list[Transaction]:
        """Returns the transactions to trace, and clears the context of the others that came with one."""
        below = self._below  # `spread` is spelled out: this happens for each commit
        wanted = [
            each
            for each in transactions
            if (each.commit.position * MULTIPLIER & MASK) < below or each.commit.trace is not None
        ]
        return self._limited(wanted) if wanted else wanted

    def _limited(self, wanted: Sequence[Transaction]) -> list[Transaction]:
        now = self._clock.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        chosen = []
        for each in wanted:
            trace = each.commit.trace
            if (trace is None or trace.sampled) and self._tokens >= 1.0:
                self._tokens -= 1.0
                chosen.append(each)
            else:
                each.commit.trace = None
        return chosen
