"""Tables that owe a comparison with the registry: why, since when, and when they are tried again.

A table that can't be committed to does not hold its lane: its changes are left out, and it is noted here, in the
registry, before they are acknowledged. A kill at any line leaves either the note or the effect. Once the table has been
compared, the note says which transactions the comparison contained, until the ledger is past them: a restart may bring
them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from astha.clock import LoopClock
from components.iceberg_updater.event_folding import TableEvents, TableTransaction
from components.iceberg_updater.settings import UpdaterSettings
from components.lib.lake.updater_state import (
    AnySnapshotVisibility,
    Compared,
    FailingTable,
    UpdaterState,
    read_updater_state,
    write_updater_state,
)
from registry.contract import MetadataStore
from registry.position import Position, SequenceVisibility, SnapshotVisibility, XidVisibility

log = structlog.get_logger(__name__)

_RECENT = 10_000
"""Transactions of a table that were left out lately: the snapshot that it is compared with must contain them."""


class Owed:
    def __init__(self, store: MetadataStore, clock: LoopClock, settings: UpdaterSettings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._notes = UpdaterState()
        self._changed = False
        self._left_out: dict[int, deque[tuple[int, Position]]] = {}

    async def load(self) -> None:
        self._notes = await read_updater_state(self._store)
        self._changed = False

    async def save(self) -> None:
        """Returns when the registry has everything that was noted before the call."""
        if not self._changed:
            return
        self._changed = False
        try:
            await write_updater_state(self._store, self._notes)
        except BaseException:
            self._changed = True
            raise

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._notes.troubled

    def __iter__(self) -> Iterator[FailingTable]:
        return iter(list(self._notes.troubled.values()))

    def get(self, table_id: int) -> FailingTable | None:
        return self._notes.troubled.get(table_id)

    @property
    def next_try(self) -> int | None:
        return min((table.next_try for table in self._notes.troubled.values()), default=None)

    @property
    def remembers_comparisons(self) -> bool:
        return bool(self._notes.compared)

    def note(self, table_id: int, table: str, reason: str, *, stopped: bool = False, now: bool = False) -> None:
        """It could not be brought up to date, and is tried again: ever later, or ``now``."""
        known = self._notes.troubled.get(table_id)
        at = self._clock.now_ms()
        attempts = (0 if known is None else known.attempts) + (not now)
        wait_s = min(self._settings.retry_first_s * 2 ** min(max(attempts - 1, 0), 30), self._settings.retry_max_s)
        self._notes.troubled[table_id] = FailingTable(
            table_id=table_id,
            table=table,
            reason=reason,
            since=at if known is None else known.since,
            attempts=attempts,
            next_try=at if now else at + int(wait_s * 1000),
            stopped=stopped,
        )
        self._notes.compared.pop(table_id, None)
        self._changed = True
        if known is None or known.reason != reason:
            tell = log.info if now else log.error if stopped else log.warning
            tell("table can't be brought up to date", table=table, reason=reason, stopped=stopped)

    def leave_out(self, events: TableEvents) -> None:
        """These are not committed: the comparison that the table owes will contain them."""
        left_out = self._left_out.setdefault(events.table_id, deque(maxlen=_RECENT))
        left_out.extend((_transaction(part), part.position) for part in events.transactions)
        known = self._notes.troubled[events.table_id]
        if known.stopped or events.speaks_of_schema:  # somebody may have helped it: then this is how one notices
            soon = self._clock.now_ms() + int(self._settings.retry_first_s * 1000)
            if known.next_try > soon:
                self._notes.troubled[events.table_id] = msgspec.structs.replace(known, next_try=soon)

    def is_contained(self, table_id: int, place: SnapshotVisibility) -> bool:
        """Whether the snapshot has everything that was left out."""
        return all(place.contains(*commit) for commit in self._left_out.get(table_id, ()))

    def settled(self, table_id: int, compared: Compared | None = None) -> None:
        """It is as the registry was; ``compared`` unless the lane knows itself what the snapshot contained."""
        known = self._notes.troubled.pop(table_id, None)
        self._left_out.pop(table_id, None)
        before = self._notes.compared.pop(table_id, None)
        if compared is not None:
            self._notes.compared[table_id] = compared
        if known is not None or before is not None or compared is not None:
            self._changed = True
        if known is not None:
            log.info("table is up to date again", table=known.table, attempts=known.attempts, reason=known.reason)

    def forget(self, table_id: int) -> None:
        """There is no such table any more."""
        self._left_out.pop(table_id, None)
        known = self._notes.troubled.pop(table_id, None), self._notes.compared.pop(table_id, None)
        self._changed = self._changed or known != (None, None)

    def forget_comparisons(self, until: Position | None = None) -> None:
        """All of them, or those beyond which the ledger is."""
        for table_id, compared in list(self._notes.compared.items()):
            if until is None or compared.until <= until:
                del self._notes.compared[table_id]
                self._changed = True

    def news(self, events: TableEvents) -> TableEvents | None:
        """Without what the table's last comparison contained. None if the table owes another one: it contained only a
        part of a transaction.
        """
        compared = self._notes.compared.get(events.table_id)
        if compared is None:
            return events
        new = without(events, compared)
        return None if splits(new, compared) else new


def splits(events: TableEvents, compared: Compared) -> bool:
    """Whether the comparison contained only a part of one of the transactions."""
    return any(compared.splits(_transaction(part), part.position) for part in events.transactions)


def without(events: TableEvents, compared: Compared) -> TableEvents:
    return TableEvents(
        events.table_id,
        [part for part in events.transactions if not compared.holds(_transaction(part), part.position)],
    )


def joined(table_id: int, waiting: Iterable[TableEvents]) -> TableEvents:
    return TableEvents(table_id, [part for events in waiting for part in events.transactions])


def known_place(place: SnapshotVisibility) -> AnySnapshotVisibility:
    assert isinstance(place, (SequenceVisibility, XidVisibility))  # noqa: S101  (all stores' places)
    return place


def _transaction(part: TableTransaction) -> int:
    return (part.files or part.metadata)[0].transaction
