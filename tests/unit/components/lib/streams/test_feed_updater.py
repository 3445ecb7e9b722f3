"""A registry stream that fails is restarted; meanwhile readers poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import cast

import pytest

from astha.errors import ConfigError
from astha.sources.contract import Batch, Gap, Started
from components.lib.streams.change_feed import ChangeFeed
from components.lib.streams.feed_updater import FeedUpdater
from registry.cache import CachedStore
from registry.contract import MetadataStore
from registry.position import Position
from tests.streams import SkippingClock
from tests.waiting import eventually


class FailingLiveSource:
    """Each stream ends as the test says: with an error, or when `stop` is set."""

    def __init__(self, *errors: Exception | None) -> None:
        self.stop = asyncio.Event()
        self.streams = 0
        self._errors = list(errors)

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        self.streams += 1
        error = self._errors.pop(0) if self._errors else None
        if self.streams == 1 and error is not None:
            raise error
        yield Gap("the stream starts")
        yield Started(Position(self.streams))
        await self.stop.wait()
        self.stop.clear()
        if error is not None:
            raise error

    def restarted(self, streams: int, feed: ChangeFeed) -> bool:
        return self.streams == streams and feed.live


def change_feed() -> ChangeFeed:
    return ChangeFeed(CachedStore(cast("MetadataStore", None)))


async def test_a_failed_stream_is_restarted() -> None:
    live_source, feed = FailingLiveSource(None, ConfigError("no slot left"), None), change_feed()
    live: list[bool] = []
    async with FeedUpdater(live_source, feed, SkippingClock()):
        for streams in (2, 3):  # the first ends without an error, the second with one
            with feed.watch([("orders", 0)]) as watch:
                assert feed.live
                live_source.stop.set()
                await watch.wait(30)
                live.append(feed.live)
                await eventually(partial(live_source.restarted, streams, feed), "another stream")
                assert watch.gaps == 2
        assert feed.store.applied == 3
    assert live == [False, False]


async def test_a_stream_that_can_not_start_is_reported_and_not_retried() -> None:
    live_source = FailingLiveSource(ConfigError("the publication is missing"))
    with pytest.raises(ConfigError, match="publication"):
        async with FeedUpdater(live_source, change_feed(), SkippingClock()):
            pass
    assert live_source.streams == 1
