"""How many jobs may run at a time, and how many bytes may be rewritten per hour."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

HOUR_MS = 3_600_000


class BudgetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """For all tables together."""

    concurrent_jobs: int = 2
    bytes_per_hour: int | None = None  # None: no limit


class Budget:
    """A token bucket of bytes that holds one hour's worth. A job may begin while the balance is positive and may make
    it negative, so that a job larger than the bucket can run; the next ones wait until the balance is positive again.
    """

    def __init__(self, limits: BudgetLimits, now_ms: int) -> None:
        self.limits = limits
        self.running = 0
        self._balance = float(limits.bytes_per_hour or 0)
        self._filled_at = now_ms

    def restore(self, spent: Iterable[tuple[int, int]], now_ms: int) -> None:
        """``spent`` holds time and bytes of the last hour's jobs in the journal, those of other compactors included."""
        hour = self.limits.bytes_per_hour
        if hour is None:
            return
        self._balance, self._filled_at = float(hour), now_ms - HOUR_MS
        for at, size in sorted(spent):
            if now_ms - HOUR_MS <= at <= now_ms:
                self._fill(at)
                self._balance -= size
        self._fill(now_ms)

    def allows(self, now_ms: int) -> bool:
        if self.running >= self.limits.concurrent_jobs:
            return False
        if self.limits.bytes_per_hour is None:
            return True
        self._fill(now_ms)
        return self._balance > 0

    def why_not(self, now_ms: int) -> str | None:
        """Returns the reason as a sentence, or None if a job may begin."""
        if self.allows(now_ms):
            return None
        if self.running >= self.limits.concurrent_jobs:
            return f"{self.running} jobs are running, which is the limit"
        return f"the limit of {self.limits.bytes_per_hour:,} bytes per hour is used up"

    def allows_at(self, now_ms: int) -> int | None:
        """Returns when the next job may begin, in epoch ms; None if it may now, or if a job has to end first."""
        if self.running >= self.limits.concurrent_jobs or self.allows(now_ms):
            return None
        return now_ms + int(-self._balance * HOUR_MS / (self.limits.bytes_per_hour or 1)) + 1

    def begin(self) -> None:
        self.running += 1

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """Called when the plan of a job is made."""
        if self.limits.bytes_per_hour is not None:
            self._fill(now_ms)
            self._balance -= size_bytes

    def end(self) -> None:
        self.running -= 1

    def left(self, now_ms: int) -> int | None:
        if self.limits.bytes_per_hour is None:
            return None
        self._fill(now_ms)
        return int(self._balance)

    def _fill(self, now_ms: int) -> None:
        """A clock that was set back adds nothing, and adds again from there."""
        hour = self.limits.bytes_per_hour or 0
        passed = max(0, now_ms - self._filled_at)
        self._balance = min(float(hour), self._balance + hour * passed / HOUR_MS)
        self._filled_at = now_ms
