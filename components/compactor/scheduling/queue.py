"""Partitions that wait for a job, the highest score first, in O(log n).

Waiting doubles a score every `DOUBLING_MS`, so that no partition waits forever. Because all scores grow alike, their
order does not change with time: it is that of log2(score) minus the time at which the wait began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from sortedcontainers import SortedList

from components.compactor.scheduling.counters import Key

DOUBLING_MS = 600_000


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    key: Key
    score: float
    since_ms: int
    until_ms: int | None = None  # not before, because of quiet hours or a failure
    size_bytes: int = 0  # that its compaction would rewrite

    @property
    def rank(self) -> float:
        """Lower comes first."""
        return self.since_ms / DOUBLING_MS - math.log2(max(self.score, 2.0**-60))


class PartitionQueue:
    def __init__(self) -> None:
        self._entries: dict[Key, QueueEntry] = {}
        self._ready: SortedList[tuple[float, Key]] = SortedList()
        self._held: SortedList[tuple[int, Key]] = SortedList()
        self.size_bytes = 0  # of all entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[QueueEntry]:
        """Yields the ready ones in order, then the held ones by time."""
        for _, key in (*self._ready, *self._held):
            yield self._entries[key]

    @property
    def held(self) -> int:
        return len(self._held)

    def put(self, key: Key, score: float, since_ms: int, until_ms: int | None = None, *, size_bytes: int = 0) -> None:
        """A partition that waits already keeps the time at which its wait began."""
        before = self._entries.get(key)
        entry = QueueEntry(key, score, since_ms if before is None else before.since_ms, until_ms, size_bytes)
        if entry == before:
            return
        self.drop(key)
        self._entries[key] = entry
        self.size_bytes += size_bytes
        if until_ms is None:
            self._ready.add((entry.rank, key))
        else:
            self._held.add((until_ms, key))

    def drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.size_bytes -= entry.size_bytes
        if entry.until_ms is None:
            self._ready.remove((entry.rank, key))
        else:
            self._held.remove((entry.until_ms, key))

    def release(self, now_ms: int, limit: int) -> list[Key]:
        """Makes at most ``limit`` of those ready whose time has come, and returns them to be judged again."""
        released: list[Key] = []
        while self._held and self._held[0][0] <= now_ms and len(released) < limit:
            _, key = self._held.pop(0)
            entry = self._entries[key] = msgspec.structs.replace(self._entries[key], until_ms=None)
            self._ready.add((entry.rank, key))
            released.append(key)
        return released

    def first(self) -> QueueEntry | None:
        """Returns the next to begin, or None if none is ready."""
        return self._entries[self._ready[0][1]] if self._ready else None

    def next_release_ms(self) -> int | None:
        return self._held[0][0] if self._held else None
