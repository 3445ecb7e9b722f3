"""One fetch from the store per key, shared by all concurrent callers.

A fetch is *current* until a change arrives that its result may miss: then it is invalidated. Callers that already wait
for an invalidated fetch still get its result, but later callers start a new one and the result is not cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from registry.errors import Unavailable
from registry.position import Position

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_sequence = 0


class Fetch(Generic[T]):
    """``as_of``: the result contains every commit up to this position. ``sequence`` orders fetches by their start."""

    __slots__ = ("_task", "as_of", "current", "sequence")

    _task: asyncio.Task[T]

    def __init__(self, as_of: Position) -> None:
        global _sequence
        _sequence += 1
        self.sequence = _sequence
        self.as_of = as_of
        self.current = True

    async def result(self) -> T:
        """Cancelling a caller, even the one that started the fetch, does not cancel the fetch."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._task.cancelled() and not (me is not None and me.cancelling()):
                raise Unavailable("the store was closed during the call: open it again") from None
            raise


class SingleFlight(Generic[K, T]):
    """The current fetches, at most one per key. Holds the task of every fetch until it ends, invalidated ones too."""

    def __init__(self) -> None:
        self._current: dict[K, Fetch[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __len__(self) -> int:
        return len(self._current)

    def join(self, key: K, as_of: Position) -> Fetch[T] | None:
        """Returns the current fetch of the key, or None if there is none or it started before ``as_of``."""
        fetch = self._current.get(key)
        return fetch if fetch is not None and fetch.as_of >= as_of else None

    def start(
        self, key: K, as_of: Position, read: Callable[[], Awaitable[T]], on_result: Callable[[Fetch[T], T], T]
    ) -> Fetch[T]:
        """Reads in a new task. Invalidates the key's current fetch, which began earlier.

        ``on_result`` gets the result, caches it if the fetch is still current, and returns what the callers get.
        """
        self.invalidate(key)
        fetch: Fetch[T] = Fetch(as_of)
        self._current[key] = fetch
        fetch._task = asyncio.create_task(self._run(key, fetch, read, on_result))
        self._tasks.add(fetch._task)
        fetch._task.add_done_callback(self._tasks.discard)
        return fetch

    async def _run(
        self, key: K, fetch: Fetch[T], read: Callable[[], Awaitable[T]], on_result: Callable[[Fetch[T], T], T]
    ) -> T:
        try:
            result = await read()
        finally:
            if fetch.current:
                del self._current[key]
        return on_result(fetch, result)

    def invalidate(self, key: K) -> None:
        fetch = self._current.pop(key, None)
        if fetch is not None:
            fetch.current = False

    def invalidate_where(self, matches: Callable[[K], bool]) -> None:
        for key in [key for key in self._current if matches(key)]:
            self.invalidate(key)

    def invalidate_all(self) -> None:
        for key in list(self._current):
            self.invalidate(key)

    async def close(self) -> None:
        """Cancels all fetches. Callers that still wait get `Unavailable`."""
        self.invalidate_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
