"""A lock with two priorities, for the tasks of one process over a database with a single writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class WriteLock:
    """First in, first out; urgent callers before the others."""

    def __init__(self) -> None:
        self._busy = False
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, *, urgent: bool) -> AsyncIterator[None]:
        await self._acquire(self._urgent if urgent else self._others)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, queue: deque[asyncio.Future[None]]) -> None:
        if not self._busy:
            self._busy = True
            return
        granted = asyncio.get_running_loop().create_future()
        queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # granted just before the cancellation
                self._release()
            raise

    def _release(self) -> None:
        for queue in (self._urgent, self._others):
            while queue:
                granted = queue.popleft()
                if not granted.done():  # else its caller was cancelled
                    granted.set_result(None)
                    return
        self._busy = False
