"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class ManualClock:
    """`advance` wakes the sleepers whose time has come, in order of their time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return self._now_ms + int(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    def jump(self, seconds: float) -> None:
        """Sets the wall clock forward or back; monotonic time does not change."""
        self._now_ms += int(seconds * 1000)

    def chance(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Lets time pass. Each sleeper that wakes up runs before the next one is woken."""
        until = self._elapsed + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._elapsed = until

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
