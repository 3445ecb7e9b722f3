"""Names for new objects, each with its intent recorded before anything can be uploaded under it.

A window would else begin with a call to the registry: names are recorded ahead, many in one call, and the next ones in
the background before these run out.
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
    """``fresh_s``: names that nobody has renewed for so long may be the cleaner's by now, and are not given out."""

    def __init__(self, store: Files, clock: Clock, location: str, owner: str, ahead: int, fresh_s: float) -> None:
        self._store = store
        self._clock = clock
        self._location = location
        self._owner = owner
        self._ahead = ahead
        self._fresh_s = fresh_s
        self._renewed_at = clock.monotonic()
        self._names: deque[str] = deque()
        self._unwanted: list[str] = []
        self._recording: asyncio.Task[None] | None = None
        self._block = 1  # few at first: a short-lived writer leaves none behind

    async def take(self) -> str:
        """Errors are the registry's; no name is taken then."""
        if self._names and self._clock.monotonic() - self._renewed_at > self._fresh_s:  # asleep, or cut off
            self._unwanted += self._names
            self._names.clear()
        while not self._names:
            if self._recording is None:
                self._record()
            assert self._recording is not None  # noqa: S101  (just begun)
            await asyncio.shield(self._recording)
        name = self._names.popleft()
        if self._recording is None and len(self._names) < self._block // 4:
            self._record()
        return name

    def renewed(self, began: float) -> None:
        """All intents were, by a call that began then."""
        self._renewed_at = began

    def _record(self) -> None:
        """An error is for whoever waits; in the background, the next one to find no name asks again."""
        self._recording = asyncio.create_task(self._record_block(), name="object names")
        self._recording.add_done_callback(self._recorded)

    def _recorded(self, task: asyncio.Task[None]) -> None:
        self._recording = None
        if not task.cancelled():
            task.exception()  # seen

    async def _record_block(self) -> None:
        names = [self._name() for _ in range(self._block)]
        began = self._clock.monotonic()
        try:
            await self._store.record_intents(names, purpose=PURPOSE, owner=self._owner)
        except BaseException:
            self._unwanted += names  # they may be recorded; nobody uses them
            raise
        if not self._names:
            self._renewed_at = began
        self._names += names
        self._block = min(self._ahead, self._block * 4)

    def _name(self) -> str:
        when = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        stamp = f"{when:%H%M%S}{when.microsecond // 1000:03d}"
        return join(self._location, f"{when:%Y%m%d}", f"{stamp}-{uuid4().hex}.segments")

    async def give_back(self) -> None:
        """What nobody has taken. An error leaves it to the cleaner."""
        if self._recording is not None:
            await asyncio.wait([self._recording])
        unwanted = [*self._names, *self._unwanted]
        self._names.clear()
        self._unwanted.clear()
        if unwanted:
            try:
                await self._store.complete_intents(unwanted)
            except RegistryError:
                self._unwanted = unwanted
                raise
