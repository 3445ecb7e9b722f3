"""The clock interface that all of Astha uses, so that tests can control time."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, UTC, in milliseconds since the epoch. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class UnchangedTimer(Generic[T]):
    """Measures for how long a value has been the same, by the local monotonic clock: wall clocks need not agree."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[T, float] | None = None

    def seconds(self, value: T) -> float:
        """Returns the seconds since this value was first seen: 0 the first time and after every change."""
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != value:
            self._seen = (value, now)
        return now - self._seen[1]


class UnchangedTimers(Generic[K, T]):
    """`UnchangedTimer` for many values, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[K, UnchangedTimer[T]] = {}

    def seconds(self, values: Mapping[K, T]) -> dict[K, float]:
        """Returns for how long each value has been the same. Forgets keys that are not given."""
        self._values = {key: self._values.get(key) or UnchangedTimer(self._clock) for key in values}
        return {key: self._values[key].seconds(value) for key, value in values.items()}
