"""How long a partition is not compacted again after a job that did not finish it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from components.compactor.scheduling.counters import Key
from components.compactor.scheduling.scoring import CompactionVerdict

JobStatus: TypeAlias = Literal["done", "declined", "aborted", "failed", "cancelled"]

SETTLING_MS = 30_000
"""How long a partition waits for the events of its swap."""

_SECOND, _MINUTE = 1_000, 60_000
_WAITS: dict[JobStatus, tuple[int, int]] = {
    "done": (SETTLING_MS, SETTLING_MS),  # the swap is not counted yet
    "declined": (5 * _SECOND, 5 * _MINUTE),  # the plan found nothing, or another job has the partition
    "aborted": (1 * _SECOND, 5 * _MINUTE),  # its files were removed
    "failed": (60 * _SECOND, 60 * _MINUTE),
    "cancelled": (10 * _MINUTE, 10 * _MINUTE),
}
"""The first wait, which doubles, and the longest one."""


class BackoffState(msgspec.Struct, frozen=True, gc=False):
    after: JobStatus
    times: int
    until_ms: int
    verdict: CompactionVerdict | None = None  # of the job's plan

    def applied_to(self, verdict: CompactionVerdict) -> CompactionVerdict:
        """Returns the verdict while the backoff lasts."""
        until = max(self.until_ms, verdict.until_ms or 0)
        if self.verdict is not None:
            return msgspec.structs.replace(self.verdict, until_ms=until)
        before = "its swap is not counted yet" if self.after == "done" else f"the last attempt was {self.after}"
        return msgspec.structs.replace(verdict, until_ms=until, reason=f"{before}; it is decided again later")


class PartitionBackoffs:
    """Holds partitions whose last job did not finish them, and no others."""

    def __init__(self) -> None:
        self._waits: dict[Key, BackoffState] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def note(self, key: Key, status: JobStatus, now_ms: int, verdict: CompactionVerdict | None = None) -> None:
        before = self._waits.get(key)
        times = before.times + 1 if before is not None and before.after == status else 1
        first, longest = _WAITS[status]
        self._waits[key] = BackoffState(status, times, now_ms + min(first << min(times - 1, 20), longest), verdict)

    def of(self, key: Key, now_ms: int) -> BackoffState | None:
        """Returns None once the backoff is over."""
        wait = self._waits.get(key)
        return wait if wait is not None and now_ms < wait.until_ms else None

    def forget(self, key: Key) -> None:
        self._waits.pop(key, None)
