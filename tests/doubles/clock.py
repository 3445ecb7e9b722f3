from __future__ import annotations

from datetime import timedelta


class ManualClock:
    """A clock that moves only on request."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def set(self, now_ms: int) -> None:
        """Sets the wall clock; the monotonic clock is unaffected."""
        self._now_ms = now_ms

    def advance(self, by: timedelta | int) -> None:
        """Advances both clocks by milliseconds or a timedelta."""
        ms = by if isinstance(by, int) else by // timedelta(milliseconds=1)
        if ms < 0:
            raise ValueError("time only goes forward: use set() for a jump of the wall clock")
        self._now_ms += ms
        self._monotonic += ms / 1000
