"""A process beside the daemon keeps its caches right by following the registry itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

import structlog

from astha.sources.contract import Follower, Gap, Progress, Started
from components.lib.streams.change_feed import ChangeFeed
from registry.models import Partition, Row, Segment, Topic

log = structlog.get_logger(__name__)

TABLES: Mapping[str, type[Row]] = {kind.table: kind for kind in (Topic, Partition, Segment)}


class RegistryFollower:
    """``async with``: inside, what anybody commits is known within milliseconds. ConfigError if it can't begin."""

    def __init__(self, follower: Follower, feed: ChangeFeed) -> None:
        self._follower = follower
        self._feed = feed
        self._begun: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._begun = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._follow(self._begun), name="following the registry")
        try:
            await self._begun
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self, begun: asyncio.Future[None]) -> None:
        try:
            async with aclosing(self._follower.stream(frozenset(TABLES))) as stream:
                async for batch in stream:
                    match batch:
                        case Gap(reason):
                            log.debug("caches start afresh", reason=reason)
                        case Started(position):
                            self._feed.resume(position)
                            if not begun.done():
                                begun.set_result(None)
                        case Progress(position):
                            self._feed.advance(position)
                        case _:
                            self._feed.apply(transaction.events for transaction in batch if transaction.events)
                            if any(transaction.unlisted for transaction in batch):
                                self._feed.resume(batch[-1].position)
        except Exception as error:
            if begun.done():
                log.error("the registry can't be followed any more, it is asked once a second", error=str(error))
                self._feed.abandon()
            else:
                begun.set_exception(error)
