"""What each component has durably done, and so what the source may forget.

A component that is live or held holds the source at its own position. One that owes a refresh holds nothing: when it
comes back it reads the registry. In between, just live again but behind what has been forgotten already, it still owes
the refresh on paper, because a crash now would cost it events; the source is held where it is until it has caught up.

A debt is on paper before the refresh begins: a position of before it must not be found after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from astha.lanes.lane import Lane
from astha.lanes.refresh import RefreshedSnapshot
from astha.lanes.state import LaneState
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import parse_json_as, to_json_text
from registry.models import DaemonLease, LedgerEntry
from registry.position import Position

_WORTH_WRITING = 1 << 20
"""Progress, in positions, that is written at once: a mebibyte of WAL, or a million changes."""

_PROGRESS_INTERVAL_MS = 10_000


class Ledger:
    """The ledger's page of each lane, written when something changed."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._written: dict[str, LedgerEntry] = {}
        self._calls: dict[str, int] = {}  # of each lane, when its page was written
        self._members: set[str] = set()  # lanes whose position counts
        self._histories = 1
        self._one_writer = asyncio.Lock()  # or an older page could be written over a newer one
        self._wrote = asyncio.Event()  # the next write is done
        self.acknowledged = Position(0)

    async def open(self, lanes: Sequence[Lane]) -> None:
        """Let each lane go on from where it was, or leave it to its first refresh."""
        self._written = {entry.component: entry for entry in await self._store.read_ledger()}
        for lane in lanes:
            entry = self._written.get(lane.name)
            if entry is None:
                continue
            if entry.state == LaneState.PAUSED:
                lane.pause()
            elif entry.refresh_owed or entry.position is None:
                lane.reason = entry.reason or "a refresh was owed"
            elif not lane.durable:
                lane.reason = "its state is in memory: it is refreshed at every start"
            elif frozenset(parse_json_as(entry.tables, list[str])) != lane.tables:
                lane.reason = "its subscription has changed"
            else:
                contained = None if entry.place is None else RefreshedSnapshot.of(entry.place)
                lane.resume_at(Position(entry.position), contained)
                self._members.add(lane.name)

    def start_over(self) -> None:
        """Another history begins: the positions of this one mean nothing in it, least of all to the source."""
        self._histories += 1
        self._members.clear()
        self.acknowledged = Position(0)

    def start_at(self, position: Position, lanes: Sequence[Lane]) -> None:
        """The source goes on from here: whoever stopped before it has missed something."""
        self.acknowledged = max(self.acknowledged, position)
        for lane in lanes:
            lane.started(position)

    async def write(
        self, lanes: Sequence[Lane], received: Position, lease: DaemonLease, *, last: bool = False
    ) -> Position:
        """Write what changed; answers the position up to which the source may forget. ``last``: before we stop.

        What is on paper comes first: only positions that would be found after a crash count.
        """
        async with self._one_writer:
            history = self._histories
            self._admit(lanes)
            pages = [self._page(lane) for lane in lanes]
            calls = {lane.name: lane.calls for lane in lanes}
            changed = [page for page in pages if last or self._worth_writing(page, calls[page.component])]
            if changed:
                for page in changed:
                    self._written.pop(page.component, None)  # a write that fails may have been done all the same
                await self._store.write_ledger(changed, lease)
                self._written.update((page.component, page) for page in changed)
                self._calls.update((page.component, calls[page.component]) for page in changed)
                self._wrote.set()
                self._wrote = asyncio.Event()
            members = {
                page.component: self._written[page.component].position for page in pages if not page.refresh_owed
            }
            everybody = all(lane.name in members for lane in lanes if lane.state.keeps_position())
            if history == self._histories and everybody:
                floor = min((position for position in members.values() if position is not None), default=received)
                self.acknowledged = max(self.acknowledged, Position(floor))
            return self.acknowledged

    async def indebted(self, name: str) -> None:
        """Returns when it is on paper that this component owes a refresh."""
        while True:
            async with self._one_writer:  # what is being written now may say that it does not
                page, wrote = self._written.get(name), self._wrote
            if page is not None and page.refresh_owed:
                return
            await wrote.wait()

    def laggard(self, lanes: Sequence[Lane]) -> Lane | None:
        """Who holds the source."""
        holding = [lane for lane in lanes if lane.state.keeps_position()]
        return min(holding, key=lambda lane: lane.position, default=None)

    def _admit(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if not lane.state.keeps_position():
                self._members.discard(lane.name)
            elif lane.position >= self.acknowledged:
                self._members.add(lane.name)

    def _worth_writing(self, page: LedgerEntry, calls: int) -> bool:
        """What was delivered, and every change of state; that the stream passed without anything, only now and then.

        Writing the ledger makes the source advance, which is progress again: without a pause an idle daemon would
        keep itself busy.
        """
        written = self._written.get(page.component)
        if written is None or _state(page) != _state(written) or calls != self._calls.get(page.component, 0):
            return True
        advanced = (page.position or 0) - (written.position or 0)
        waited_ms = page.updated_at - written.updated_at
        return advanced >= _WORTH_WRITING or (advanced > 0 and waited_ms >= _PROGRESS_INTERVAL_MS)

    def _page(self, lane: Lane) -> LedgerEntry:
        member = lane.name in self._members
        return LedgerEntry(
            component=lane.name,
            position=lane.position if member else None,
            place=lane.contained.document() if member and lane.contained is not None else None,
            tables=to_json_text(sorted(lane.tables)),
            state=str(lane.state),
            refresh_owed=not member,
            reason=lane.reason,
            updated_at=self._clock.now_ms(),
        )


def _state(page: LedgerEntry) -> tuple[object, ...]:
    return (page.state, page.refresh_owed, page.reason, page.place, page.tables)
