"""Time, sleep and randomness: the daemon takes all three from here, so that tests can control them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

from registry.clock import Clock, SystemClock


class LoopClock(Clock, Protocol):
    async def sleep(self, seconds: float) -> None: ...

    def chance(self) -> float:
        """Returns a random number between 0 and 1, for jitter."""
        ...


_COUNTS_SUSPENSION = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A lease also expires while the machine is suspended; Linux's CLOCK_MONOTONIC does not count that time."""


class SystemLoopClock(SystemClock):
    def monotonic(self) -> float:
        return time.clock_gettime(_COUNTS_SUSPENSION)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return random.random()  # noqa: S311  (jitter, not secrecy)
