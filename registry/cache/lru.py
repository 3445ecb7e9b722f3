"""A bounded map whose entries expire, with the least recently used going first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from registry.clock import Clock
from registry.position import Position

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Entry(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """``floor``: the value contains every commit up to there. ``tick``: which flight brought it."""

    value: V
    expires: float
    floor: Position
    tick: int


class Counts(msgspec.Struct, frozen=True):
    hits: int
    misses: int
    evictions: int


class Progress:
    """How far the change events have been applied; shared by the maps of one cache."""

    __slots__ = ("applied",)

    def __init__(self) -> None:
        self.applied = Position(0)


class Lru(Generic[K, V]):
    """Nothing here waits. A hit is a dict lookup, a look at the clock and a move in a linked list."""

    def __init__(self, capacity: int, progress: Progress, clock: Clock) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[K, Entry[V]] = OrderedDict()
        self.hits = self.misses = self.evictions = 0
        self._progress = progress
        self._clock = clock

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: K, at_least: Position | None) -> Entry[V] | None:
        """A live entry that knows of everything up to ``at_least``; counted."""
        entry = self.peek(key, at_least)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
        return entry

    def peek(self, key: K, at_least: Position | None) -> Entry[V] | None:
        """`get`, not counted."""
        entry = self.entries.get(key)
        if entry is None or entry.expires <= self._clock.monotonic():
            return None
        if at_least is not None and at_least > self._progress.applied and at_least > entry.floor:
            return None
        self.entries.move_to_end(key)
        return entry

    def put(self, key: K, value: V, ttl: float, floor: Position, tick: int) -> K | None:
        """Keep it unless what is held came from a later flight. Answers the key that was pushed out."""
        held = self.entries.get(key)
        if ttl <= 0 or self.capacity <= 0 or (held is not None and held.tick > tick):
            return None
        self.entries[key] = Entry(value, self._clock.monotonic() + ttl, floor, tick)
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
    def counts(self) -> Counts:
        return Counts(self.hits, self.misses, self.evictions)

    def reset_counts(self) -> None:
        self.hits = self.misses = self.evictions = 0
