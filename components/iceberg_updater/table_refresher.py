"""Refreshes tables with a pending refresh, in the background and on a thread of its own, until that succeeds.

Events of a table that arrive during its refresh are buffered; those that the refresh did not contain are committed
after it. Only then is the refresh complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from astha.clock import LoopClock
from astha.tasks import first_of
from components.iceberg_updater.committer import NeedsRefresh, TargetTable, is_iceberg
from components.iceberg_updater.committer_thread import CommitterThread
from components.iceberg_updater.event_folding import TableEvents, joined
from components.iceberg_updater.pending_refreshes import PendingRefreshes, has_partial, storable, without
from components.iceberg_updater.refresh import IcebergRefresh
from components.lib.lake.iceberg import CatalogUnavailable, TableProblem, TableUnavailable, identifier_of
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.table_lookup import full_name
from components.lib.lake.updater_state import Compared, FailingTable
from components.lib.ledger_entry import ledger_entry
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import RegistryError
from registry.models import LakeTable
from registry.position import Position

log = structlog.get_logger(__name__)

_VISIBLE_WITHIN_S = 10.0
_RETRY_S = 1.0
_CHECK_INTERVAL_S = 30.0
_MAX_BUFFERED = 100_000
"""Events to buffer during a table's refresh. With more, the refresh fails and is repeated."""


class _EventBuffer:
    """Events of a table that is being refreshed."""

    def __init__(self) -> None:
        self._events: list[TableEvents] = []
        self._count = 0
        self._overflowed = False

    def add(self, events: TableEvents) -> None:
        self._events.append(events)
        self._count += sum(len(part.files) + len(part.metadata) for part in events.transactions)
        if self._count > _MAX_BUFFERED:
            self._overflowed = True
            self._events.clear()

    def take(self) -> list[TableEvents]:
        if self._overflowed:
            raise TableUnavailable(f"more than {_MAX_BUFFERED:,} events arrived during the refresh: refreshing again")
        taken, self._events, self._count = self._events, [], 0
        return taken


class TableRefresher:
    """`commit` commits events as a delivery does; `drop` drops a table that the registry no longer has; both raise what
    prevents them. `on_refreshed` receives the id of a refreshed table and metadata files that are no longer needed.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        pending: PendingRefreshes,
        thread: CommitterThread,
        commit: Callable[[TableEvents], Awaitable[None]],
        drop: Callable[[FailingTable], Awaitable[None]],
        on_refreshed: Callable[[int, list[str]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._pending = pending
        self._thread = thread
        self._commit = commit
        self._drop = drop
        self._on_refreshed = on_refreshed
        self._buffers: dict[int, _EventBuffer] = {}
        self._wake = asyncio.Event()

    def take(self, events: TableEvents) -> bool:
        """Takes the events if the table's refresh is pending or running. Returns False if they can be committed now."""
        buffer = self._buffers.get(events.table_id)
        if buffer is not None:
            buffer.add(events)
        if events.table_id in self._pending:
            self._pending.skip(events)
            self._wake.set()
            return True
        return buffer is not None

    def wake(self) -> None:
        """To be called when a pending refresh was added."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.refresh_due()
            except (CatalogUnavailable, RegistryError) as error:
                log.warning("table refreshes postponed", error=str(error))
                await self._clock.sleep(_RETRY_S)
            except Exception:
                log.exception("table refreshes failed unexpectedly")
                await self._clock.sleep(_RETRY_S)
            await self._until_due()

    async def refresh_due(self) -> None:
        """Attempts each due table once. Raises `CatalogUnavailable` or `RegistryError` if none can be refreshed."""
        now = self._clock.now_ms()
        for table in sorted(self._pending, key=lambda table: table.next_try):
            if table.next_try <= now and table.table_id in self._pending:
                await self._attempt(table)
        await self._forget_completed()
        await self._pending.save()

    async def _until_due(self) -> None:
        next_try, wait_s = self._pending.next_try, _CHECK_INTERVAL_S
        if next_try is not None:
            wait_s = min(wait_s, max(0.01, (next_try - self._clock.now_ms()) / 1000))
        await first_of(self._wake.wait(), self._clock.sleep(wait_s))

    async def _forget_completed(self) -> None:
        """A restart delivers again what the ledger's position has not passed: keep records of refreshes until then."""
        if not self._pending.has_completed:
            return
        entry = await ledger_entry(self._store, "iceberg_updater")
        if entry is not None and not entry.refresh_owed and entry.position is not None:
            self._pending.forget_completed(Position(entry.position))

    async def _attempt(self, pending: FailingTable) -> None:
        table_id, stopped = pending.table_id, False
        try:
            table = await self._store.get_table_by_id(table_id)
            if table is None:
                await self._drop(pending)
                self._pending.remove(table_id)
            else:
                await self._refresh(table)
            await self._pending.save()
            return
        except TableUnavailable as trouble:
            reason = str(trouble)
        except (CatalogUnavailable, RegistryError, asyncio.CancelledError):
            raise
        except (TableProblem, SchemaProblem) as problem:
            stopped, reason = True, str(problem)
        except NeedsRefresh as needs:
            reason = str(needs)
        except Exception as error:
            log.exception("table refresh failed unexpectedly", table=pending.table)
            reason = f"unexpected error: {error!r}"
        finally:
            self._buffers.pop(table_id, None)
        self._pending.add(table_id, pending.table, reason, stopped=stopped)
        await self._pending.save()

    async def _refresh(self, table: LakeTable) -> None:
        thread, table_id = self._thread, table.id
        if thread.is_hanging(table_id):
            raise TableUnavailable(f"{full_name(table)}: its storage still has not answered an earlier request")
        rows = {row.schema_version: row for row in await self._store.list_table_metadata(table_id)}
        if not rows:
            raise TableUnavailable(f"{full_name(table)} was dropped meanwhile")  # the next attempt drops it in Iceberg
        if not is_iceberg(rows.values()):
            self._pending.remove(table_id)
            return
        await self._probe(TargetTable(table, rows))
        buffer = self._buffers[table_id] = _EventBuffer()
        async with self._snapshot(table_id) as (snapshot, compared):
            result = await IcebergRefresh(self._store, thread, table_id).run(snapshot)
        await self._on_refreshed(table_id, result.unreferenced)
        failure = result.failed.get(table_id)
        if failure is not None:
            raise (TableProblem if failure.stopped else TableUnavailable)(failure.reason)
        while events := buffer.take():
            new = without(joined(table_id, events), compared)
            if has_partial(new, compared):
                raise TableUnavailable("the refresh contained only a part of a transaction: refreshing again")
            if new.transactions:
                await self._commit(new)
        self._buffers.pop(table_id, None)  # deliveries commit again from here on: no await until `complete`
        self._pending.complete(table_id, compared)

    async def _probe(self, target: TargetTable) -> None:
        """Most attempts fail here, before anything is read from the registry."""
        committer = self._thread.committer
        committer.tables.claimed = frozenset(identifier_of(table) for table in await self._store.list_tables())
        try:
            await self._thread.call(partial(committer.probe, target), table=target.table, probe=True)
        except (TableProblem, SchemaProblem) as problem:
            await self._thread.call(partial(committer.stop, target, str(problem)), table=target.table, probe=True)
            raise

    @asynccontextmanager
    async def _snapshot(self, table_id: int) -> AsyncIterator[tuple[ConsistentRead, Compared]]:
        """Opens a snapshot that contains the skipped transactions.

        PostgreSQL sends a commit a moment before other sessions can see it.
        """
        deadline = self._clock.monotonic() + _VISIBLE_WITHIN_S
        while True:
            async with self._store.consistent_read() as snapshot:
                if self._pending.contains_skipped(table_id, snapshot.visibility):
                    yield snapshot, Compared(storable(snapshot.visibility), await self._store.position())
                    return
            if self._clock.monotonic() > deadline:
                raise TableUnavailable("a skipped transaction was committed but is still not visible")
            await asyncio.sleep(0.002)
