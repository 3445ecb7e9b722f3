"""Tables with a pending refresh: the reason, since when, and the time of the next attempt.

A table that cannot be committed to does not block its lane. Its changes are skipped, and the table is recorded here, in
the registry, before they are acknowledged: a crash at any point leaves either the record or the effect. After a table's
refresh, the record contains the visibility of the snapshot that was read, until the ledger passes it: a restart may
deliver those transactions again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import msgspec
import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.iceberg_updater.event_folding import TableEvents
from components.iceberg_updater.settings import UpdaterSettings
from components.lib.lake.updater_state import (
    Compared,
    FailingTable,
    UpdaterState,
    read_updater_state,
    write_updater_state,
)
from registry.contract import MetadataStore
from registry.position import AnySnapshotVisibility, Position, SnapshotVisibility

log = structlog.get_logger(__name__)

_MAX_SKIPPED = 10_000
"""Skipped transactions to remember per table: the snapshot that its refresh reads must contain them."""


class PendingRefreshes:
    def __init__(self, store: MetadataStore, clock: LoopClock, settings: UpdaterSettings) -> None:
        self._store = store
        self._clock = clock
        self._backoff = Backoff(settings.retry_initial_s, settings.retry_max_s)
        self._state = UpdaterState()
        self._changed = False
        self._saving = asyncio.Lock()
        self._skipped: dict[int, deque[tuple[int, Position]]] = {}

    async def load(self) -> None:
        self._state = await read_updater_state(self._store)
        self._changed = False

    async def save(self) -> None:
        """Returns when the registry has everything that was recorded before the call.

        Lane and background task both save: a call waits for the write in flight instead of trusting it.
        """
        async with self._saving:
            if not self._changed:
                return
            self._changed = False
            try:
                await write_updater_state(self._store, self._state)
            except BaseException:
                self._changed = True
                raise

    def __contains__(self, table_id: int) -> bool:
        return table_id in self._state.troubled

    def __iter__(self) -> Iterator[FailingTable]:
        return iter(list(self._state.troubled.values()))

    @property
    def next_try(self) -> int | None:
        return min((table.next_try for table in self._state.troubled.values()), default=None)

    def add(self, table_id: int, table: str, reason: str, *, stopped: bool = False, now: bool = False) -> None:
        """Records that the table could not be updated. It is retried with backoff, or `now`."""
        known = self._state.troubled.get(table_id)
        at = self._clock.now_ms()
        attempts = (0 if known is None else known.attempts) + (not now)
        self._state.troubled[table_id] = FailingTable(
            table_id=table_id,
            table=table,
            reason=reason,
            since=at if known is None else known.since,
            attempts=attempts,
            next_try=at if now else at + int(self._backoff.wait_s(attempts, self._clock) * 1000),
            stopped=stopped,
        )
        self._state.compared.pop(table_id, None)
        self._changed = True
        if known is None or known.reason != reason:
            write = log.info if now else log.error if stopped else log.warning
            write("table needs a refresh", table=table, reason=reason, stopped=stopped)

    def skip(self, events: TableEvents) -> None:
        """These are not committed: the table's refresh must contain them."""
        skipped = self._skipped.setdefault(events.table_id, deque(maxlen=_MAX_SKIPPED))
        skipped.extend((part.transaction, part.position) for part in events.transactions)
        known = self._state.troubled[events.table_id]
        if known.stopped or events.changes_schema:  # the change may be the remedy
            soon = self._clock.now_ms() + int(self._backoff.initial_s * 1000)
            if known.next_try > soon:
                self._state.troubled[events.table_id] = msgspec.structs.replace(known, next_try=soon)

    def contains_skipped(self, table_id: int, visibility: SnapshotVisibility) -> bool:
        """Whether a snapshot of that visibility contains every skipped transaction of the table."""
        return all(visibility.contains(*commit) for commit in self._skipped.get(table_id, ()))

    def complete(self, table_id: int, compared: Compared | None = None) -> None:
        """The table's refresh is done. `compared` says what its snapshot contained; None if the lane refreshed, which
        knows that itself.
        """
        known = self._state.troubled.pop(table_id, None)
        self._skipped.pop(table_id, None)
        before = self._state.compared.pop(table_id, None)
        if compared is not None:
            self._state.compared[table_id] = compared
        if known is not None or before is not None or compared is not None:
            self._changed = True
        if known is not None:
            log.info("table refreshed", table=known.table, attempts=known.attempts, reason=known.reason)

    def remove(self, table_id: int) -> None:
        """Forgets a table that no longer exists, or is no longer for Iceberg."""
        self._skipped.pop(table_id, None)
        known = self._state.troubled.pop(table_id, None), self._state.compared.pop(table_id, None)
        self._changed = self._changed or known != (None, None)

    @property
    def has_completed(self) -> bool:
        return bool(self._state.compared)

    def forget_completed(self, until: Position | None = None) -> None:
        """Forgets what completed refreshes contained: all of them, or those that the ledger's position has passed."""
        for table_id, compared in list(self._state.compared.items()):
            if until is None or compared.until <= until:
                del self._state.compared[table_id]
                self._changed = True

    def new_events(self, events: TableEvents) -> TableEvents | None:
        """Returns the events without those that the table's last refresh contained.

        Returns None if it contained only a part of a transaction: then the table needs another refresh.
        """
        compared = self._state.compared.get(events.table_id)
        if compared is None:
            return events
        new = without(events, compared)
        return None if has_partial(new, compared) else new


def has_partial(events: TableEvents, compared: Compared) -> bool:
    """Whether the refresh contained only a part of one of the transactions."""
    return any(compared.splits(part.transaction, part.position) for part in events.transactions)


def without(events: TableEvents, compared: Compared) -> TableEvents:
    """Returns the events without those that the refresh contained."""
    return TableEvents(
        events.table_id,
        [part for part in events.transactions if not compared.contains(part.transaction, part.position)],
    )


def storable(visibility: SnapshotVisibility) -> AnySnapshotVisibility:
    assert isinstance(visibility, AnySnapshotVisibility)  # noqa: S101  (one per kind of store)
    return visibility
