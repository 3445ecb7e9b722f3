"""How long a partition is left alone after an attempt that came to nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from components.compactor.scheduling.counters import Key
from components.compactor.scheduling.scoring import Verdict

Ending: TypeAlias = Literal["done", "declined", "aborted", "failed", "cancelled"]

SETTLING_MS = 30_000
"""How long the events of a swap are waited for."""

_SECOND, _MINUTE = 1_000, 60_000
_WAITS: dict[Ending, tuple[int, int]] = {
    "done": (SETTLING_MS, SETTLING_MS),  # what was swapped is not counted yet
    "declined": (5 * _SECOND, 5 * _MINUTE),  # the plan found nothing, or somebody else is at it
    "aborted": (1 * _SECOND, 5 * _MINUTE),  # its files went away
    "failed": (60 * _SECOND, 60 * _MINUTE),
    "cancelled": (10 * _MINUTE, 10 * _MINUTE),
}
"""The first wait, which doubles, and the longest."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    after: Ending
    times: int
    until_ms: int
    verdict: Verdict | None = None  # that came of it

    def applied_to(self, verdict: Verdict) -> Verdict:
        """What stands while it lasts."""
        until = max(self.until_ms, verdict.until_ms or 0)
        if self.verdict is not None:
            return msgspec.structs.replace(self.verdict, until_ms=until)
        told = "its swap is on its way" if self.after == "done" else f"the last attempt was {self.after}"
        return msgspec.structs.replace(verdict, until_ms=until, reason=f"{told}; it is looked at again later")


class Patience:
    """Remembers partitions whose last attempt came to nothing, and no others."""

    def __init__(self) -> None:
        self._waits: dict[Key, Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def note(self, key: Key, ending: Ending, now_ms: int, verdict: Verdict | None = None) -> None:
        before = self._waits.get(key)
        times = before.times + 1 if before is not None and before.after == ending else 1
        first, longest = _WAITS[ending]
        self._waits[key] = Wait(ending, times, now_ms + min(first << min(times - 1, 20), longest), verdict)

    def of(self, key: Key, now_ms: int) -> Wait | None:
        """While it lasts."""
        wait = self._waits.get(key)
        return wait if wait is not None and now_ms < wait.until_ms else None

    def forget(self, key: Key) -> None:
        self._waits.pop(key, None)
