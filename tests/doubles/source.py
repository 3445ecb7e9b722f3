"""A source that a test feeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from astha.sources.contract import Batch, SourceStatus
from registry.position import Position


class ScriptedSource:
    """`say` puts a batch into the stream. An error is raised from it, None ends it."""

    def __init__(self) -> None:
        self._script: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue()
        self.acknowledged: list[Position] = []
        self.streams = 0
        self.taken = 0
        self.open = False

    def say(self, *batches: Batch | BaseException | None) -> None:
        for batch in batches:
            self._script.put_nowait(batch)

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        self.streams += 1
        self.open = True
        try:
            while (batch := await self._script.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
                self.taken += 1
        finally:
            self.open = False

    def acknowledge(self, position: Position) -> None:
        if self.open:
            self.acknowledged.append(position)

    def retained_for(self, position: Position) -> int:
        return 0

    def status(self) -> SourceStatus:
        return SourceStatus(self.open, Position(0), Position(0), None, None, None)

    async def close(self) -> None:
        return
