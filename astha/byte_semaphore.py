"""How much may be in memory: whoever finds no room waits, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteSemaphore:
    """What is larger than all of it goes alone."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self, size: int) -> None:
        """Cancelled, it has taken nothing."""
        if not self._waiting and self._fits(size):
            self._taken += size
            return
        word: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = (size, word)
        self._waiting.append(turn)
        try:
            await word
        except BaseException:
            if word.done() and not word.cancelled() and word.exception() is None:
                self.give_back(size)
            elif turn in self._waiting:
                self._waiting.remove(turn)
                self._admit()
            raise

    def give_back(self, size: int) -> None:
        self._taken -= size
        self._admit()

    def close(self, error: Exception) -> None:
        """Whoever waits is refused."""
        while self._waiting:
            _, word = self._waiting.popleft()
            if not word.done():
                word.set_exception(error)
                word.exception()

    def _fits(self, size: int) -> bool:
        return self._taken == 0 or self._taken + size <= self._total

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, word = self._waiting.popleft()
            if not word.done():
                self._taken += size
                word.set_result(None)
