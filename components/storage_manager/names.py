"""Names for new files, each with its intent recorded before anybody can use it.

A writer of many small inserts would spend most of its registry calls on intents: the more names a partition has needed,
the more are recorded ahead in one call. Names that nobody used are given back at the end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from components.lake.intents import purpose_of
from components.lake.locations import file_location
from components.storage_manager.targets import Target
from registry.clock import Clock
from registry.contract import Files

_MOST_PARTITIONS = 256  # that have names ahead

_Key = tuple[str, str, str]


@dataclass
class _Ahead:
    names: deque[str] = field(default_factory=deque)
    block: int = 0  # how many more than needed to record next time


class Names:
    def __init__(self, store: Files, clock: Clock, owner: str, most_ahead: int) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._most_ahead = most_ahead
        self._ahead: OrderedDict[_Key, _Ahead] = OrderedDict()
        self._unwanted: list[str] = []

    async def take(self, target: Target, partitions: Sequence[str]) -> list[str]:
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
            if new:
                purpose = purpose_of("insert", target.table.id)
                names = [name for some in new.values() for name in some]
                await self._store.record_intents(names, purpose=purpose, owner=self._owner)
        except BaseException:
            for path, some in taken.items():
                self._ahead.setdefault(keys[path], _Ahead()).names.extendleft(reversed(some))
            self._unwanted.extend(name for some in new.values() for name in some)
            raise
        for path, some in new.items():
            missing = counts[path] - len(taken[path])
            taken[path].extend(some[:missing])
            ahead = self._ahead.setdefault(keys[path], _Ahead())
            ahead.names.extend(some[missing:])
            ahead.block = max(1, ahead.block * 4)
        self._forget_the_oldest()
        return [taken[path].pop(0) for path in partitions]

    async def give_back(self) -> None:
        """All that nobody has taken. An error leaves them to the cleaner."""
        for ahead in self._ahead.values():
            self._unwanted.extend(ahead.names)
        self._ahead.clear()
        unwanted, self._unwanted = self._unwanted, []
        if unwanted:
            await self._store.complete_intents(unwanted)

    def _forget_the_oldest(self) -> None:
        while len(self._ahead) > _MOST_PARTITIONS:
            _, ahead = self._ahead.popitem(last=False)
            self._unwanted.extend(ahead.names)
