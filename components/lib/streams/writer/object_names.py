"""Names for new objects. The upload intent of each name is recorded before the name is given out.

Names are allocated in batches, and the next batch in the background before one runs out: otherwise each window would
begin with a call to the registry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from uuid import uuid4

from components.lib.lake.storage.locations import join
from registry.clock import Clock
from registry.contract import Files
from registry.errors import RegistryError

PURPOSE = "segments"


class ObjectNames:
    """Names whose intents were not renewed for `fresh_s` are not given out: the cleaner may have taken them."""

    def __init__(
        self, store: Files, clock: Clock, location: str, owner: str, *, max_batch: int, fresh_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._location = location
        self._owner = owner
        self._max_batch = max_batch
        self._fresh_s = fresh_s
        self._renewed_at = clock.monotonic()
        self._names: deque[str] = deque()
        self._unused: list[str] = []
        self._allocation: asyncio.Task[None] | None = None
        self._batch = 1  # grows: a short-lived writer leaves few names behind

    async def take(self) -> str:
        """Raises the registry's errors; no name is taken then."""
        if self._names and self._clock.monotonic() - self._renewed_at > self._fresh_s:  # paused or disconnected
            self._unused += self._names
            self._names.clear()
        while not self._names:
            await asyncio.shield(self._allocation or self._allocate())
        name = self._names.popleft()
        if self._allocation is None and len(self._names) < self._batch // 4:
            self._allocate()
        return name

    def renewed(self, started: float) -> None:
        """All intents were renewed, by a call that started then."""
        self._renewed_at = started

    def _allocate(self) -> asyncio.Task[None]:
        """An error is raised in waiting calls. If none waits, the next call that finds no name tries again."""
        self._allocation = asyncio.create_task(self._record_batch(), name="object names")
        self._allocation.add_done_callback(self._allocated)
        return self._allocation

    def _allocated(self, task: asyncio.Task[None]) -> None:
        self._allocation = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved

    async def _record_batch(self) -> None:
        names = [self._new_name() for _ in range(self._batch)]
        started = self._clock.monotonic()
        try:
            await self._store.record_intents(names, purpose=PURPOSE, owner=self._owner)
        except BaseException:
            self._unused += names  # they may be recorded
            raise
        if not self._names:
            self._renewed_at = started
        self._names += names
        self._batch = min(self._max_batch, self._batch * 4)

    def _new_name(self) -> str:
        when = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        time = f"{when:%H%M%S}{when.microsecond // 1000:03d}"
        return join(self._location, f"{when:%Y%m%d}", f"{time}-{uuid4().hex}.segments")

    async def release_unused(self) -> None:
        """Completes the intents of unused names. After an error the cleaner does it."""
        if self._allocation is not None:
            await asyncio.wait([self._allocation])
        unused = [*self._names, *self._unused]
        self._names.clear()
        self._unused.clear()
        if unused:
            try:
                await self._store.complete_intents(unused)
            except RegistryError:
                self._unused = unused
                raise
