"""A bounded map with expiring entries and least-recently-used eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from registry.clock import Clock
from registry.position import Position

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CacheEntry(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """``as_of``: the value contains every commit up to this position. ``sequence``: the fetch that returned it."""

    value: V
    expires: float
    as_of: Position
    sequence: int


class CacheCounters(msgspec.Struct, frozen=True):
    hits: int
    misses: int
    evictions: int


class AppliedPosition:
    """The position up to which change events have been applied; shared by the maps of one cache."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied = Position(0)


class Lru(Generic[K, V]):
    """Synchronous. A hit costs a dict lookup, a clock read and a move in a linked list."""

    def __init__(self, capacity: int, progress: AppliedPosition, clock: Clock) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[K, CacheEntry[V]] = OrderedDict()
        self.hits = self.misses = self.evictions = 0
        self._progress = progress
        self._clock = clock

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: K, at_least: Position | None) -> CacheEntry[V] | None:
        """Returns an unexpired entry that contains every commit up to ``at_least``. Counts a hit or a miss."""
        entry = self.peek(key, at_least)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
        return entry

    def peek(self, key: K, at_least: Position | None) -> CacheEntry[V] | None:
        """`get` without counting."""
        entry = self.entries.get(key)
        if entry is None or entry.expires <= self._clock.monotonic():
            return None
        if at_least is not None and at_least > self._progress.applied and at_least > entry.as_of:
            return None
        self.entries.move_to_end(key)
        return entry

    def put(self, key: K, value: V, ttl: float, as_of: Position, sequence: int) -> K | None:
        """Keeps the value unless the entry came from a later fetch. Returns the evicted key, if any."""
        held = self.entries.get(key)
        if ttl <= 0 or self.capacity <= 0 or (held is not None and held.sequence > sequence):
            return None
        self.entries[key] = CacheEntry(value, self._clock.monotonic() + ttl, as_of, sequence)
        self.entries.move_to_end(key)
        if len(self.entries) <= self.capacity:
            return None
        self.evictions += 1
        return self.entries.popitem(last=False)[0]

    def drop(self, key: K) -> None:
        self.entries.pop(key, None)

    @property
    def hit_rate(self) -> float:
        """0.0 before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else 0.0

    @property
    def counts(self) -> CacheCounters:
        return CacheCounters(self.hits, self.misses, self.evictions)

    def reset_counts(self) -> None:
        self.hits = self.misses = self.evictions = 0
