"""`ChangeFeed`: committed changes update a process's caches and wake the readers that wait for new records.

The daemon's component feeds it with events; other processes follow the registry themselves
(`components.lib.streams.feed_updater`).
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
    """Notifications about some partitions. Call `clear` before reading: later notifications end the next `wait`."""

    def __init__(self) -> None:
        self.end_offsets: dict[PartitionKey, int] = {}  # the highest that was notified
        self.changed: dict[PartitionKey, None] = {}  # since the last `take_changed`, in order
        self.gaps = 0  # times that notifications may have been missed
        self.misses = 0  # reads in a row that did not find a notified record yet
        self._notified = asyncio.Event()

    def clear(self) -> None:
        self._notified.clear()

    def notify(self, key: PartitionKey | None, end_offset: int = 0) -> None:
        """Without a key: any of the partitions may have changed."""
        if key is not None and end_offset > self.end_offsets.get(key, 0):
            self.end_offsets[key] = end_offset
            self.changed[key] = None
        self._notified.set()

    def take_changed(self) -> Iterable[PartitionKey]:
        changed, self.changed = self.changed, {}
        return changed

    async def wait(self, timeout_s: float) -> bool:
        """Returns whether a notification came before the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._notified.wait()
        except TimeoutError:
            return False
        return True


class ChangeFeed:
    """All methods are synchronous, so no reader runs between the update of the cache and its notification."""

    def __init__(self, store: CachedStore) -> None:
        self.store = store
        self.live = True  # False: no changes arrive, so readers have to poll
        self._watches: dict[PartitionKey, set[PartitionWatch]] = defaultdict(set)

    def apply(self, transactions: Iterable[Sequence[Event[Row]]]) -> None:
        """Takes committed transactions, in order."""
        for events in transactions:
            self.store.invalidate_transaction(events)
            for event in events:
                row = event.data
                if isinstance(row, Segment) and event.operation is not Operation.DELETE:
                    for watch in self._watches.get((row.topic, row.partition_id), ()):
                        watch.notify((row.topic, row.partition_id), row.end_offset + 1)

    def advance(self, position: Position) -> None:
        """There are no relevant changes up to this position."""
        self.store.advance(position)

    def resume(self, position: Position) -> None:
        """Changes arrive from this position on; earlier ones may be missing: clears the caches, wakes all readers."""
        self.live = True
        self._restart(position)

    def disconnect(self) -> None:
        """No changes arrive until `resume`: caches are as fresh as their TTLs allow, and waiting readers poll."""
        self.live = False
        self._restart(self.store.applied)

    def _restart(self, position: Position) -> None:
        self.store.resume(position)
        for watches in self._watches.values():
            for watch in watches:
                watch.gaps += 1
                watch.notify(None)

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
