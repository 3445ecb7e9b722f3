"""Work that comes due together is done a few at a time, so that it leaves connections for everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

import structlog

from components.snapshotter.table_state import Trigger

log = structlog.get_logger(__name__)

Due: TypeAlias = "tuple[Trigger, str]"

_MANY = 64
"""Open requests beyond which each is looked at less often, in proportion."""


class Turns:
    """`async with` for a step of a request; between two steps it holds no turn. ``open``: requests under way."""

    def __init__(self, at_once: int) -> None:
        self._gate = asyncio.Semaphore(at_once)
        self.open = 0

    def wait_s(self, wished_s: float) -> float:
        """How long to wait between two looks at one request, when there are many."""
        return wished_s * max(1.0, self.open / _MANY)

    async def __aenter__(self) -> None:
        await self._gate.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.release()


class DueTables:
    """Tables that wait for their snapshot to be requested, each once, first come first served."""

    def __init__(self, request: Callable[[int, Due], Awaitable[None]]) -> None:
        self._request = request
        self._waiting: dict[int, Due] = {}
        self.busy: set[int] = set()  # tables whose request is being made
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, table_id: int, due: Due) -> None:
        self._waiting.setdefault(table_id, due)
        self._added.set()

    def clear(self) -> None:
        self._waiting.clear()

    async def work(self) -> None:
        """One table after the other, until cancelled. Start as many of these as may be at work at once."""
        while True:
            while self._waiting:
                table_id = next(iter(self._waiting))
                due = self._waiting.pop(table_id)
                self.busy.add(table_id)
                try:
                    await self._request(table_id, due)
                except Exception:
                    log.exception("unexpected trouble with a table that is due", table_id=table_id)
                finally:
                    self.busy.discard(table_id)
            self._added.clear()
            await self._added.wait()
