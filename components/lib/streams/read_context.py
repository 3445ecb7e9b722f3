"""The parts of reading, put together: what the daemon's component has, and what any process can open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from astha.settings import Settings
from astha.sources.factory import open_follower
from astha.subscribers.context import ComponentContext
from components.lib.lake.storage.objects import Objects
from components.lib.streams.change_feed import ChangeFeed
from components.lib.streams.reader.block_cache import BlockCache, BlockCachePolicy
from components.lib.streams.reader.blocks import CachedBlock, decode
from components.lib.streams.reader.disk_cache import DiskBlockCache
from components.lib.streams.reader.prefetch import Prefetcher, PrefetchPolicy
from components.lib.streams.reader.reader import Reader
from components.lib.streams.registry_follower import RegistryFollower
from components.lib.streams.unowned_store import _BorrowedStore
from registry.cache import CachedStore


class ReadContext:
    """A registry cache that events feed, a block cache, a reader and its read-ahead. Opens nothing until it is used."""

    def __init__(
        self,
        context: ComponentContext,
        *,
        objects: Objects | None = None,
        policy: BlockCachePolicy | None = None,
        ahead: PrefetchPolicy | None = None,
        disk: DiskBlockCache | None = None,
    ) -> None:
        self.store = CachedStore(_BorrowedStore(context.store), clock=context.clock)
        self.feed = ChangeFeed(self.store)
        self.objects = objects or Objects(context.lake)
        self.cache: BlockCache[CachedBlock] = BlockCache(self.objects, decode, policy, disk)
        self.reader = Reader(self.feed, self.cache, context.clock)
        self.ahead = Prefetcher(self.reader, ahead)

    async def close(self) -> None:
        """The registry's store, which was lent, stays open."""
        await self.cache.close()
        await self.store.close()


@asynccontextmanager
async def open_read_context(
    context: ComponentContext,
    settings: Settings,
    *,
    follow: bool = True,
    disk: tuple[Path, int] | None = None,
) -> AsyncIterator[ReadContext]:
    """For a process beside the daemon. ``follow``: what others commit is known within milliseconds, and whoever waits
    is woken; without, caches are as old as their times allow, and whoever waits looks once a second.
    """
    async with AsyncExitStack() as stack:
        # In a thread, because it lists the files of its directory.
        blocks = None if disk is None else await asyncio.to_thread(DiskBlockCache, *disk)
        reading = ReadContext(context, disk=blocks)
        stack.push_async_callback(reading.close)
        if follow:
            url = settings.registry.url.get_secret_value()
            follower = open_follower(url, settings.source, settings.change_log, context.clock)
            await stack.enter_async_context(RegistryFollower(follower, reading.feed))
        else:
            reading.feed.abandon()
        yield reading
