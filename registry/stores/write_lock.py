"""Turns at writing, for tasks of one process over a database that has one writer at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class WriterTurns:
    """First come first served; but what is urgent goes before what is not."""

    def __init__(self) -> None:
        self._busy = False
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, *, urgent: bool) -> AsyncIterator[None]:
        await self._acquire(self._urgent if urgent else self._others)
        try:
            yield
        finally:
            self._pass_on()

    async def _acquire(self, queue: deque[asyncio.Future[None]]) -> None:
        if not self._busy:
            self._busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was ours already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        for queue in (self._urgent, self._others):
            while queue:
                turn = queue.popleft()
                if not turn.done():  # not cancelled meanwhile
                    turn.set_result(None)
                    return
        self._busy = False
