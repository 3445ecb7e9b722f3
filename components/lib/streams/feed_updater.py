"""`FeedUpdater`: a process beside the daemon follows the registry itself to keep its caches up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

import structlog

from astha.clock import LoopClock
from astha.sources.contract import Gap, LiveSource, Progress, Started
from astha.tasks import BackgroundTasks
from components.lib.streams.change_feed import ChangeFeed
from registry.models import Partition, Row, Segment, Topic

log = structlog.get_logger(__name__)

TABLES: Mapping[str, type[Row]] = {kind.table: kind for kind in (Topic, Partition, Segment)}


class FeedUpdater:
    """``async with``: inside the block, commits of other processes are visible within milliseconds.

    Raises ConfigError if the stream cannot start. If it fails later, readers poll until it is restarted.
    """

    def __init__(self, live_source: LiveSource, change_feed: ChangeFeed, clock: LoopClock) -> None:
        self._live_source = live_source
        self._change_feed = change_feed
        self._started: asyncio.Future[None] | None = None
        self._tasks = BackgroundTasks("change feed updater", clock)

    async def __aenter__(self) -> Self:
        started = self._started = asyncio.get_running_loop().create_future()
        self._tasks.supervise("stream", lambda: self._follow(started))
        try:
            await started
        except BaseException:
            await self._tasks.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.stop()

    async def _follow(self, started: asyncio.Future[None]) -> None:
        try:
            await self._apply_stream(started)
        except Exception as error:
            if not started.done():
                started.set_exception(error)
                await asyncio.Event().wait()  # until __aenter__ stops the task
            self._change_feed.disconnect()
            raise
        self._change_feed.disconnect()

    async def _apply_stream(self, started: asyncio.Future[None]) -> None:
        async with aclosing(self._live_source.stream(frozenset(TABLES))) as stream:
            async for batch in stream:
                match batch:
                    case Gap(reason):
                        log.debug("gap in the registry stream", reason=reason)
                    case Started(position):
                        self._change_feed.resume(position)
                        if not started.done():
                            started.set_result(None)
                    case Progress(position):
                        self._change_feed.advance(position)
                    case _:
                        self._change_feed.apply(transaction.events for transaction in batch if transaction.events)
                        if any(transaction.unlisted for transaction in batch):
                            self._change_feed.resume(batch[-1].position)
