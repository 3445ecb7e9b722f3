"""The stream of changes, on its way to a process's caches and to the readers that wait for news.

The same in every process: the daemon's component is given events, others follow the registry by themselves
(`components.lib.streams.registry_follower`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from astha.events import Event, Operation
from registry.cache import CachedStore
from registry.models import Row, Segment
from registry.position import Position

PartitionKey: TypeAlias = tuple[str, int]


class PartitionWatch:
    """What has become known of some partitions since it was last `cleared`."""

    def __init__(self) -> None:
        self.ends: dict[PartitionKey, int] = {}  # the highest offset told of, and one
        self.fresh: dict[PartitionKey, None] = {}  # of which something was told since they were last `taken`, in order
        self.lost = 0  # times that something may have been missed
        self.pause: float | None = None  # before the next look, if one could not see yet what was told
        self._news = asyncio.Event()

    def clear(self) -> None:
        """Before looking: what is told from then on wakes."""
        self._news.clear()

    def tell(self, key: PartitionKey | None, end: int = 0) -> None:
        if key is not None and end > self.ends.get(key, 0):
            self.ends[key] = end
            self.fresh[key] = None
        self._news.set()

    def take(self) -> Iterable[PartitionKey]:
        """Partitions of which something new was told."""
        taken, self.fresh = self.fresh, {}
        return taken

    async def wait(self, timeout_s: float) -> bool:
        """Whether there are news; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class ChangeFeed:
    """All of it is synchronous: nobody reads between a cache that knows of a segment and a waiter that does."""

    def __init__(self, store: CachedStore) -> None:
        self.store = store
        self.followed = True  # False: nobody tells any more, so one has to look
        self._watches: dict[PartitionKey, set[PartitionWatch]] = defaultdict(set)

    def apply(self, transactions: Iterable[Sequence[Event[Row]]]) -> None:
        """Commits, in order."""
        for events in transactions:
            self.store.invalidate_transaction(events)
            for event in events:
                row = event.data
                if isinstance(row, Segment) and event.operation is not Operation.DELETE:
                    for watch in self._watches.get((row.topic, row.partition_id), ()):
                        watch.tell((row.topic, row.partition_id), row.end_offset + 1)

    def advance(self, position: Position) -> None:
        """Nothing for us up to here."""
        self.store.advance(position)

    def resume(self, position: Position) -> None:
        """Something may have been missed: caches forget, and whoever waits looks again."""
        self.store.resume(position)
        for watches in self._watches.values():
            for watch in watches:
                watch.lost += 1
                watch.tell(None)

    def abandon(self) -> None:
        """The stream has ended for good: caches are as fresh as their times allow, and who waits looks by itself."""
        self.followed = False
        self.resume(self.store.applied)

    @contextmanager
    def watch(self, keys: Iterable[PartitionKey]) -> Iterator[PartitionWatch]:
        watch, watched = PartitionWatch(), list(keys)
        for key in watched:
            self._watches[key].add(watch)
        try:
            yield watch
        finally:
            for key in watched:
                watches = self._watches[key]
                watches.discard(watch)
                if not watches:
                    del self._watches[key]
