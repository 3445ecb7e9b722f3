"""Names for new files; the intent of each is recorded before the name is used.

A writer of many small inserts would spend most of its registry calls on intents. So the more names a partition has
needed, the more are recorded ahead in one call, and the next ones in the background before these run out. Unused names
are given back at the end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from components.lib.lake.registration.upload_intents import purpose_of
from components.lib.lake.storage.locations import file_location
from components.lib.storage_manager.table_handles import TableHandle
from registry.clock import Clock
from registry.contract import PAGE, Files
from registry.errors import RegistryError

_MAX_PARTITIONS = 256  # with names recorded ahead

_MIN_REFILL = 16  # names; fewer are recorded when they are needed

_Key = tuple[str, str, str]


@dataclass
class _Ahead:
    names: deque[str] = field(default_factory=deque)
    block: int = 0  # how many more than needed to record next time
    refill: asyncio.Task[None] | None = None


class UploadNames:
    def __init__(self, store: Files, clock: Clock, owner: str, max_ahead: int) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._max_ahead = max_ahead
        self._ahead: OrderedDict[_Key, _Ahead] = OrderedDict()
        self._unused: list[str] = []
        self._refills: set[asyncio.Task[None]] = set()

    async def take(self, target: TableHandle, partitions: Sequence[str]) -> list[str]:
        """Returns a name per partition. Makes at most one call to the registry; after an error no name is taken."""
        keys = {path: (target.table.location, path, target.engine.extension) for path in partitions}
        counts = Counter(partitions)
        taken: dict[str, list[str]] = {}
        new: dict[str, list[str]] = {}
        for path, count in counts.items():
            ahead = self._ahead.setdefault(keys[path], _Ahead())
            self._ahead.move_to_end(keys[path])
            taken[path] = [ahead.names.popleft() for _ in range(min(count, len(ahead.names)))]
            missing = count - len(taken[path])
            if missing:
                now = self._clock.now_ms()
                new[path] = [
                    file_location(target.table.location, path, target.engine.extension, now)
                    for _ in range(missing + min(ahead.block, self._max_ahead))
                ]
        try:
            await self._record(target, [name for some in new.values() for name in some])
        except BaseException:
            for path, some in taken.items():
                self._ahead.setdefault(keys[path], _Ahead()).names.extendleft(reversed(some))
            raise
        for path, some in new.items():
            missing = counts[path] - len(taken[path])
            taken[path].extend(some[:missing])
            ahead = self._ahead.setdefault(keys[path], _Ahead())
            ahead.names.extend(some[missing:])
            ahead.block = max(1, ahead.block * 4)
        for path in counts:
            self._refill_if_low(target, path, keys[path])
        self._evict_oldest()
        return [taken[path].pop(0) for path in partitions]

    async def _record(self, target: TableHandle, names: list[str]) -> None:
        """After an error the intents may be recorded or not; the names are not used."""
        if not names:
            return
        try:
            purpose = purpose_of("insert", target.table.id)
            await self._store.record_intents(names, purpose=purpose, owner=self._owner)
        except BaseException:
            self._unused.extend(names)
            raise

    def _refill_if_low(self, target: TableHandle, path: str, key: _Key) -> None:
        ahead = self._ahead.get(key)
        if ahead is None or ahead.refill is not None:
            return
        count = min(ahead.block, self._max_ahead)
        if count < _MIN_REFILL or len(ahead.names) > count // 4:
            return

        async def refill() -> None:
            now = self._clock.now_ms()
            names = [file_location(key[0], path, key[2], now) for _ in range(count)]
            try:
                await self._record(target, names)
                ahead.names.extend(names)
                ahead.block = max(1, ahead.block * 4)
            except RegistryError:
                return  # `take` records names itself then, and raises the error
            finally:
                ahead.refill = None

        ahead.refill = asyncio.create_task(refill())
        self._refills.add(ahead.refill)
        ahead.refill.add_done_callback(self._refills.discard)

    async def drop_unused(self) -> None:
        """Completes intents of unused names: otherwise the writer would renew them until it ends. After an error they
        are kept for the next call.
        """
        unwanted, self._unused = self._unused, []
        try:
            for start in range(0, len(unwanted), PAGE):
                await self._store.complete_intents(unwanted[start : start + PAGE])
        except BaseException:
            self._unused += unwanted
            raise

    async def give_back(self) -> None:
        """Completes the intents of all names that were not taken. After an error the cleaner does."""
        if self._refills:
            await asyncio.wait(self._refills)
        for ahead in self._ahead.values():
            self._unused.extend(ahead.names)
        self._ahead.clear()
        await self.drop_unused()

    def _evict_oldest(self) -> None:
        for key in list(self._ahead)[: max(0, len(self._ahead) - _MAX_PARTITIONS)]:
            if self._ahead[key].refill is None:
                self._unused.extend(self._ahead.pop(key).names)
