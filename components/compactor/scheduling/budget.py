"""How much may be done at once, and in an hour."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

HOUR_MS = 3_600_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of all tables together."""

    concurrent_jobs: int = 2
    bytes_per_hour: int | None = None  # None: as many as there are


class Budget:
    """A bucket that fills at its hourly rate and holds an hour's worth. A job begins while anything is in it and may
    take more than there is, so that a large one never waits for a bucket larger than the bucket; the others wait for
    the debt to be paid.
    """

    def __init__(self, limits: Limits, now_ms: int) -> None:
        self.limits = limits
        self.running = 0
        self._balance = float(limits.bytes_per_hour or 0)
        self._filled_at = now_ms

    def restore(self, spent: Iterable[tuple[int, int]], now_ms: int) -> None:
        """When and how many bytes, of the last hour by the journal. What another compactor did counts too."""
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
        """For people."""
        if self.allows(now_ms):
            return None
        if self.running >= self.limits.concurrent_jobs:
            return f"{self.running} jobs are running, as many as may at once"
        return f"the hour's {self.limits.bytes_per_hour:,} bytes are used up"

    def allows_at(self, now_ms: int) -> int | None:
        """When time alone will allow the next job; None if it does now, or if a job has to end first."""
        if self.running >= self.limits.concurrent_jobs or self.allows(now_ms):
            return None
        return now_ms + int(-self._balance * HOUR_MS / (self.limits.bytes_per_hour or 1)) + 1

    def begin(self) -> None:
        self.running += 1

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """When it is known how much a job will rewrite."""
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
        """A clock that goes back fills nothing, and fills again from there."""
        hour = self.limits.bytes_per_hour or 0
        passed = max(0, now_ms - self._filled_at)
        self._balance = min(float(hour), self._balance + hour * passed / HOUR_MS)
        self._filled_at = now_ms
