"""The seam through which all of Astha asks for the time, so that a test can own it."""

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


class Unchanged(Generic[T]):
    """For how long a value has been the same, by one's own monotonic clock: what needs no agreement of wall clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[T, float] | None = None

    def seconds(self, value: T) -> float:
        """Since it was first seen; 0 the first time, and after every change."""
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != value:
            self._seen = (value, now)
        return now - self._seen[1]


class UnchangedValues(Generic[K, T]):
    """`Unchanged` for many values, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[K, Unchanged[T]] = {}

    def seconds(self, values: Mapping[K, T]) -> dict[K, float]:
        """For how long each has been the same. Keys that are not among these are forgotten."""
        self._values = {key: self._values.get(key) or Unchanged(self._clock) for key in values}
        return {key: self._values[key].seconds(value) for key, value in values.items()}
