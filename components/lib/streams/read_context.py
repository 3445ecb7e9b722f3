"""`ReadContext`: everything that reading needs, as the daemon's component has it and as any process can open it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from astha.settings import Settings
from astha.sources.factory import open_live_source
from astha.subscribers.context import ComponentContext
from components.lib.lake.storage.objects import Objects
from components.lib.streams.change_feed import ChangeFeed
from components.lib.streams.feed_updater import FeedUpdater
from components.lib.streams.reader.block_cache import BlockCache, BlockCachePolicy
from components.lib.streams.reader.blocks import CachedBlock, decode
from components.lib.streams.reader.disk_cache import DiskBlockCache
from components.lib.streams.reader.prefetch import Prefetcher, PrefetchPolicy
from components.lib.streams.reader.reader import Reader
from registry.cache import CachedStore
from registry.forwarding import ForwardingStore


class ReadContext:
    """A registry cache with its change feed, a block cache, a reader and a prefetcher. Connects on first use."""

    def __init__(
        self,
        context: ComponentContext,
        *,
        objects: Objects | None = None,
        policy: BlockCachePolicy | None = None,
        prefetch: PrefetchPolicy | None = None,
        disk: DiskBlockCache | None = None,
    ) -> None:
        self.store = CachedStore(BorrowedStore(context.store), clock=context.clock)
        self.change_feed = ChangeFeed(self.store)
        self.objects = objects or Objects(context.lake)
        self.cache: BlockCache[CachedBlock] = BlockCache(self.objects, decode, policy, disk)
        self.reader = Reader(self.change_feed, self.cache, context.clock)
        self.prefetcher = Prefetcher(self.reader, prefetch)

    async def close(self) -> None:
        """Leaves the registry's store open: it belongs to the caller."""
        await self.cache.close()
        await self.store.close()


class BorrowedStore(ForwardingStore):
    async def close(self) -> None:
        """Does nothing: the owner closes the store."""


@asynccontextmanager
async def open_read_context(
    context: ComponentContext,
    settings: Settings,
    *,
    follow: bool = True,
    disk: tuple[Path, int] | None = None,
) -> AsyncIterator[ReadContext]:
    """For a process beside the daemon.

    With `follow`, commits of other processes are visible within milliseconds and wake waiting readers. Without, caches
    are as old as their TTLs allow, and waiting readers poll once a second.
    """
    async with AsyncExitStack() as stack:
        # In a thread, because it lists the files of its directory.
        blocks = None if disk is None else await asyncio.to_thread(DiskBlockCache, *disk)
        read_context = ReadContext(context, disk=blocks)
        stack.push_async_callback(read_context.close)
        if follow:
            url = settings.registry.url.get_secret_value()
            live_source = open_live_source(url, settings.source, settings.change_log, context.clock)
            following = FeedUpdater(live_source, read_context.change_feed, context.clock)
            await stack.enter_async_context(following)
        else:
            read_context.change_feed.disconnect()
        yield read_context
