"""Time, sleep and chance: the daemon takes all three from here, so that a test can own them."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from registry.clock import Clock, SystemClock


class LoopClock(Clock, Protocol):
    async def sleep(self, seconds: float) -> None: ...

    def chance(self) -> float:
        """Between 0 and 1, for jitter."""
        ...


class SystemLoopClock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return random.random()  # noqa: S311  (jitter, not secrecy)
