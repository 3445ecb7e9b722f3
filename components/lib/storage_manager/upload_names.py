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

_MOST_PARTITIONS = 256  # that have names ahead

_WORTH_A_REFILL = 16  # names; fewer are recorded when they are needed

_Key = tuple[str, str, str]


@dataclass
class _Ahead:
    names: deque[str] = field(default_factory=deque)
    block: int = 0  # how many more than needed to record next time
    refill: asyncio.Task[None] | None = None


class UploadNames:
    def __init__(self, store: Files, clock: Clock, owner: str, most_ahead: int) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._most_ahead = most_ahead
        self._ahead: OrderedDict[_Key, _Ahead] = OrderedDict()
        self._unwanted: list[str] = []
        self._refills: set[asyncio.Task[None]] = set()

    async def take(self, target: TableHandle, partitions: Sequence[str]) -> list[str]:
        """A name for each. At most one call to the registry; an error takes no name."""
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
                    for _ in range(missing + min(ahead.block, self._most_ahead))
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
            self._refill_in_time(target, path, keys[path])
        self._forget_the_oldest()
        return [taken[path].pop(0) for path in partitions]

    async def _record(self, target: TableHandle, names: list[str]) -> None:
        """After an error they may be recorded or not; nobody uses them."""
        if not names:
            return
        try:
            purpose = purpose_of("insert", target.table.id)
            await self._store.record_intents(names, purpose=purpose, owner=self._owner)
        except BaseException:
            self._unwanted.extend(names)
            raise

    def _refill_in_time(self, target: TableHandle, path: str, key: _Key) -> None:
        ahead = self._ahead.get(key)
        if ahead is None or ahead.refill is not None:
            return
        count = min(ahead.block, self._most_ahead)
        if count < _WORTH_A_REFILL or len(ahead.names) > count // 4:
            return

        async def refill() -> None:
            now = self._clock.now_ms()
            names = [file_location(key[0], path, key[2], now) for _ in range(count)]
            try:
                await self._record(target, names)
                ahead.names.extend(names)
                ahead.block = max(1, ahead.block * 4)
            except RegistryError:
                return  # who needs a name and finds none asks again, and is told
            finally:
                ahead.refill = None

        ahead.refill = asyncio.create_task(refill())
        self._refills.add(ahead.refill)
        ahead.refill.add_done_callback(self._refills.discard)

    async def drop_unwanted(self) -> None:
        """Intents that nobody will use: without this the writer would renew them until its end. An error keeps them
        for the next time.
        """
        unwanted, self._unwanted = self._unwanted, []
        try:
            for start in range(0, len(unwanted), PAGE):
                await self._store.complete_intents(unwanted[start : start + PAGE])
        except BaseException:
            self._unwanted += unwanted
            raise

    async def give_back(self) -> None:
        """All that nobody has taken. An error leaves them to the cleaner."""
        if self._refills:
            await asyncio.wait(self._refills)
        for ahead in self._ahead.values():
            self._unwanted.extend(ahead.names)
        self._ahead.clear()
        await self.drop_unwanted()

    def _forget_the_oldest(self) -> None:
        for key in list(self._ahead)[: max(0, len(self._ahead) - _MOST_PARTITIONS)]:
            if self._ahead[key].refill is None:
                self._unwanted.extend(self._ahead.pop(key).names)
