"""One question to the store, any number of callers waiting for its answer.

A flight is *current* until something happens that its answer may not know of: then it is spoilt. Who waits
for a spoilt flight still gets its answer, but later callers start a new one and the answer is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from registry.errors import Unavailable
from registry.position import Position

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_ticks = 0


class Flight(Generic[T]):
    """``floor``: the answer contains every commit up to there. ``tick`` orders flights by their start."""

    __slots__ = ("_task", "current", "floor", "tick")

    _task: asyncio.Task[T]

    def __init__(self, floor: Position) -> None:
        global _ticks
        _ticks += 1
        self.tick = _ticks
        self.floor = floor
        self.current = True

    async def answer(self) -> T:
        """Cancelling the caller, even the one that started the flight, does not touch the flight."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._task.cancelled() and not (me is not None and me.cancelling()):
                raise Unavailable("the store was closed before it had answered; open it again") from None
            raise


class Flights(Generic[K, T]):
    """The current flights, one a key. The task of a flight is held until it ends, current or spoilt."""

    def __init__(self) -> None:
        self._current: dict[K, Flight[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __len__(self) -> int:
        return len(self._current)

    def join(self, key: K, floor: Position) -> Flight[T] | None:
        """The current flight of that key, unless it started too early for this floor."""
        flight = self._current.get(key)
        return flight if flight is not None and flight.floor >= floor else None

    def start(
        self, key: K, floor: Position, ask: Callable[[], Awaitable[T]], land: Callable[[Flight[T], T], T]
    ) -> Flight[T]:
        """Ask in a task of its own. A current flight of that key is spoilt: it began before this one.

        ``land`` is called with the answer: it keeps it if the flight is still current, and returns what the
        callers get.
        """
        self.spoil(key)
        flight: Flight[T] = Flight(floor)
        self._current[key] = flight
        flight._task = asyncio.create_task(self._fly(key, flight, ask, land))
        self._tasks.add(flight._task)
        flight._task.add_done_callback(self._tasks.discard)
        return flight

    async def _fly(
        self, key: K, flight: Flight[T], ask: Callable[[], Awaitable[T]], land: Callable[[Flight[T], T], T]
    ) -> T:
        try:
            answer = await ask()
        finally:
            if flight.current:
                del self._current[key]
        return land(flight, answer)

    def spoil(self, key: K) -> None:
        flight = self._current.pop(key, None)
        if flight is not None:
            flight.current = False

    def spoil_where(self, matches: Callable[[K], bool]) -> None:
        for key in [key for key in self._current if matches(key)]:
            self.spoil(key)

    def spoil_all(self) -> None:
        for key in list(self._current):
            self.spoil(key)

    async def close(self) -> None:
        """Callers that still wait get Unavailable."""
        self.spoil_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
