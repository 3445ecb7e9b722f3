"""The ledger: each component's acknowledged position, and so the position up to which the source may forget.

A component that is live or held keeps the source at its own position. One that owes a refresh keeps nothing: it will
read the registry. One that has just become live, but is behind what the source may already forget, still owes its
refresh in the ledger, because a crash now would cost it events; the source stays where it is until it has caught up.

Lanes and ledger do not know each other: the daemon passes `LaneProgress` one way, `RestoredLane` the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from astha.lanes.snapshot import RefreshedSnapshot
from astha.lanes.state import LaneProgress, LaneState, RestoredLane
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import parse_json_as, to_json_text
from registry.models import DaemonLease, LedgerEntry
from registry.position import Position

_PROGRESS_INTERVAL_MS = 10_000

_WORTH_WRITING = 1 << 20
"""Progress that is written at once: a mebibyte of WAL, or a million changes."""

_WORTH_WRITING_OF_TIME = _PROGRESS_INTERVAL_MS * 1_000_000
"""The same if positions are nanoseconds, which advance even if nothing changes."""


class LedgerWrite(msgspec.Struct, frozen=True):
    """`acknowledged`: the source may forget up to here. `refresh_owed`: lanes of which the ledger now says so."""

    acknowledged: Position
    refresh_owed: Sequence[LaneProgress]


class Ledger:
    """One entry per component of the daemon's group, written when something changed."""

    def __init__(self, store: MetadataStore, clock: Clock, group: str = "astha", unit: str = "bytes") -> None:
        """`unit` is that of the source's positions."""
        self._worth_writing_at_once = _WORTH_WRITING_OF_TIME if unit == "nanoseconds" else _WORTH_WRITING
        self._store = store
        self._clock = clock
        self._group = group
        self._written: dict[str, LedgerEntry] = {}
        self._deliveries: dict[str, int] = {}  # of each lane, when its entry was written
        self._members: set[str] = set()  # lanes whose position counts
        self._histories = 1
        self._one_writer = asyncio.Lock()  # otherwise an older entry could be written over a newer one
        self.acknowledged = Position(0)

    async def open(self, lanes: Sequence[LaneProgress]) -> dict[str, RestoredLane]:
        """Reads the ledger. Returns, for each lane that it knows, where to continue or why it owes a refresh."""
        self._written = {entry.component: entry for entry in await self._store.read_ledger(self._group)}
        restored: dict[str, RestoredLane] = {}
        for lane in lanes:
            entry = self._written.get(lane.component)
            if entry is not None:
                found = restored[lane.component] = _restored(entry, lane)
                if found.position is not None:
                    self._members.add(lane.component)
        return restored

    def start_over(self) -> None:
        """Another history begins: the positions of this one mean nothing in it, least of all to the source."""
        self._histories += 1
        self._members.clear()
        self.acknowledged = Position(0)

    def start_at(self, position: Position) -> None:
        """The source continues from here."""
        self.acknowledged = max(self.acknowledged, position)

    async def write(
        self, lanes: Callable[[], Sequence[LaneProgress]], received: Position, lease: DaemonLease, *, last: bool = False
    ) -> LedgerWrite:
        """Writes what changed; everything if it is the `last` time before the daemon stops.

        Only positions that are in the ledger count for the acknowledgement: those are found after a crash.
        """
        async with self._one_writer:
            history = self._histories
            before = lanes()
            self._admit(before)
            entries = [self._entry(lane) for lane in before]
            changed = [
                (entry, lane.deliveries)
                for entry, lane in zip(entries, before, strict=True)
                if last or self._worth_writing(entry, lane.deliveries)
            ]
            if changed:
                for entry, _ in changed:
                    self._written.pop(entry.component, None)  # a write that fails may have been done all the same
                await self._store.write_ledger([entry for entry, _ in changed], lease)
                for entry, deliveries in changed:
                    self._written[entry.component] = entry
                    self._deliveries[entry.component] = deliveries
            self._acknowledge(entries, lanes(), received, history)
            owed = [lane for lane in before if self._written[lane.component].refresh_owed]
            return LedgerWrite(self.acknowledged, owed)

    def _acknowledge(
        self, entries: Sequence[LedgerEntry], now: Sequence[LaneProgress], received: Position, history: int
    ) -> None:
        """Does nothing if, during the write, another history began or another lane became live."""
        positions = {
            entry.component: self._written[entry.component].position for entry in entries if not entry.refresh_owed
        }
        complete = all(lane.component in positions for lane in now if lane.state.keeps_position())
        if history == self._histories and complete:
            lowest = min((position for position in positions.values() if position is not None), default=received)
            self.acknowledged = max(self.acknowledged, Position(lowest))

    def _admit(self, lanes: Sequence[LaneProgress]) -> None:
        for lane in lanes:
            if not lane.state.keeps_position():
                self._members.discard(lane.component)
            elif lane.position >= self.acknowledged:
                self._members.add(lane.component)

    def _worth_writing(self, entry: LedgerEntry, deliveries: int) -> bool:
        """Deliveries and changes of state are written at once; that the stream passed without anything, now and then.

        Writing the ledger makes the source advance, which is progress again: without a pause an idle daemon would
        keep itself busy.
        """
        written = self._written.get(entry.component)
        if written is None or _state(entry) != _state(written):
            return True
        if deliveries != self._deliveries.get(entry.component, 0):
            return True
        advanced = (entry.position or 0) - (written.position or 0)
        waited_ms = entry.updated_at - written.updated_at
        return advanced >= self._worth_writing_at_once or (advanced > 0 and waited_ms >= _PROGRESS_INTERVAL_MS)

    def _entry(self, lane: LaneProgress) -> LedgerEntry:
        member = lane.component in self._members
        return LedgerEntry(
            component=lane.component,
            position=lane.position if member else None,
            refresh_visibility=lane.refreshed.to_json() if member and lane.refreshed is not None else None,
            tables=to_json_text(sorted(lane.tables)),
            state=str(lane.state),
            refresh_owed=not member,
            reason=lane.reason,
            updated_at=self._clock.now_ms(),
            group=self._group,
        )


def _restored(entry: LedgerEntry, lane: LaneProgress) -> RestoredLane:
    if entry.state == LaneState.PAUSED:
        return RestoredLane(entry.reason, paused=True)
    if entry.refresh_owed or entry.position is None:
        return RestoredLane(entry.reason or "a refresh was owed")
    if not lane.durable:
        return RestoredLane("its state is in memory: it is refreshed at every start")
    if frozenset(parse_json_as(entry.tables, list[str])) != lane.tables:
        return RestoredLane("its subscription has changed")
    refreshed = None if entry.refresh_visibility is None else RefreshedSnapshot.from_json(entry.refresh_visibility)
    return RestoredLane(None, Position(entry.position), refreshed)


def _state(entry: LedgerEntry) -> tuple[object, ...]:
    return (entry.state, entry.refresh_owed, entry.reason, entry.refresh_visibility, entry.tables)
