"""`ByteSemaphore`: a bound on the bytes in memory or in flight, shared by callers of one event loop."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteSemaphore:
    """Grants callers in their order of arrival. A request above the limit is granted when nothing else is held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._acquired = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def acquired(self) -> int:
        return self._acquired

    @property
    def available(self) -> int:
        return max(0, self._limit - self._acquired)

    async def acquire(self, size: int) -> None:
        """Waits until the bytes are available. A cancelled call holds nothing."""
        if self.try_acquire(size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, granted)
        self._waiting.append(waiter)
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release(size)
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
                self._grant()
            raise

    def try_acquire(self, size: int) -> bool:
        """Returns whether the bytes were available. Does not overtake waiting callers."""
        if self._waiting or not self._fits(size):
            return False
        self._acquired += size
        return True

    def release(self, size: int) -> None:
        self._acquired -= size
        self._grant()

    def close(self, error: Exception) -> None:
        """Raises `error` in every waiting call."""
        while self._waiting:
            _, granted = self._waiting.popleft()
            if not granted.done():
                granted.set_exception(error)
                granted.exception()  # marks it as retrieved

    def _fits(self, size: int) -> bool:
        return self._acquired == 0 or self._acquired + size <= self._limit

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._acquired += size
                granted.set_result(None)
