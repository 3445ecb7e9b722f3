"""Time, sleep and chance: the daemon takes all three from here, so that a test can own them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

from registry.clock import Clock, SystemClock


class LoopClock(Clock, Protocol):
    async def sleep(self, seconds: float) -> None: ...

    def chance(self) -> float:
        """Between 0 and 1, for jitter."""
        ...


_COUNTS_SUSPENSION = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A lease goes on running out while the machine sleeps; Linux's CLOCK_MONOTONIC does not count that time."""


class SystemLoopClock(SystemClock):
    def monotonic(self) -> float:
        return time.clock_gettime(_COUNTS_SUSPENSION)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return random.random()  # noqa: S311  (jitter, not secrecy)
