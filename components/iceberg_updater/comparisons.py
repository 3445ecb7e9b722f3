"""Tables that owe a comparison are tried again, in the background and in a thread of their own, until it succeeds.

While a table is compared its events wait; those that the comparison did not contain are committed after it. Then, and
not before, the table owes nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from astha.clock import LoopClock
from components.iceberg_updater.committer import NeedsComparison, TableWork, is_iceberg
from components.iceberg_updater.event_folding import TableEvents
from components.iceberg_updater.owed import Owed, joined, known_place, splits, without
from components.iceberg_updater.refresh import Refresh
from components.iceberg_updater.thread import IcebergThread
from components.lib.lake.iceberg import CatalogUnavailable, TableProblem, TableUnavailable, identifier_of
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.updater_state import Compared, FailingTable
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import RegistryError
from registry.models import LakeTable

log = structlog.get_logger(__name__)

_VISIBLE_WITHIN_S = 10.0
_AGAIN_S = 1.0
_LOOK_S = 30.0
_MOST_WAITING = 100_000
"""Events of a table that may wait while it is compared; beyond, it is compared again."""


class _Waiting:
    """Events of a table that is being compared."""

    def __init__(self) -> None:
        self._events: list[TableEvents] = []
        self._count = 0
        self._too_many = False

    def add(self, events: TableEvents) -> None:
        self._events.append(events)
        self._count += sum(len(part.files) + len(part.metadata) for part in events.transactions)
        if self._count > _MOST_WAITING:
            self._too_many = True
            self._events.clear()

    def take(self) -> list[TableEvents]:
        if self._too_many:
            raise TableUnavailable("more has changed than may wait while the table is compared: comparing again")
        taken, self._events, self._count = self._events, [], 0
        return taken


class Comparisons:
    """``commit`` brings events to Iceberg as a delivery would, ``drop`` a table that the registry has no more; both
    raise what keeps them from it. ``done`` is told of a table that was compared, and of files that nothing needs now.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        owed: Owed,
        thread: IcebergThread,
        commit: Callable[[TableEvents], Awaitable[None]],
        drop: Callable[[FailingTable], Awaitable[None]],
        done: Callable[[int, list[str]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._owed = owed
        self._thread = thread
        self._commit = commit
        self._drop = drop
        self._done = done
        self._waiting: dict[int, _Waiting] = {}
        self._wake = asyncio.Event()

    def take(self, events: TableEvents) -> bool:
        """Whether they are not to be committed now: the table is being compared, or owes it."""
        waiting = self._waiting.get(events.table_id)
        if waiting is not None:
            waiting.add(events)
        if events.table_id in self._owed:
            self._owed.leave_out(events)
            self._wake.set()
            return True
        return waiting is not None

    def wake(self) -> None:
        """Something was noted."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.attempt_due()
            except (CatalogUnavailable, RegistryError) as error:
                log.warning("tables can't be compared now", error=str(error))
                await self._clock.sleep(_AGAIN_S)
            except Exception:
                log.exception("tables can't be compared")
                await self._clock.sleep(_AGAIN_S)
            await self._until_due()

    async def attempt_due(self) -> None:
        """Each table whose time has come, once. CatalogUnavailable or RegistryError if none can be compared."""
        now = self._clock.now_ms()
        for table in sorted(self._owed, key=lambda table: table.next_try):
            if table.next_try <= now and table.table_id in self._owed:
                await self._attempt(table)
        await self._forget_comparisons()
        await self._owed.save()

    async def _until_due(self) -> None:
        next_try = self._owed.next_try
        wait_s = _LOOK_S if next_try is None else min(_LOOK_S, max(0.01, (next_try - self._clock.now_ms()) / 1000))
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self._clock.sleep(wait_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _forget_comparisons(self) -> None:
        """A crash brings again what the ledger is not past."""
        if not self._owed.remembers_comparisons:
            return
        for entry in await self._store.read_ledger():
            if entry.component == "iceberg_updater" and not entry.refresh_owed and entry.position is not None:
                self._owed.forget_comparisons(entry.position)  # type: ignore[arg-type]  # a position

    async def _attempt(self, owing: FailingTable) -> None:
        table_id, stopped = owing.table_id, False
        try:
            table = await self._store.get_table_by_id(table_id)
            if table is None:
                await self._drop(owing)
                self._owed.forget(table_id)
            else:
                await self._compare(table)
            await self._owed.save()
            return
        except TableUnavailable as trouble:
            reason = str(trouble)
        except (CatalogUnavailable, RegistryError, asyncio.CancelledError):
            raise
        except (TableProblem, SchemaProblem) as problem:
            stopped, reason = True, str(problem)
        except NeedsComparison as needs:
            reason = str(needs)
        except Exception as error:
            log.exception("unexpected trouble with a table", table=owing.table)
            reason = f"unexpected trouble: {error!r}"
        finally:
            self._waiting.pop(table_id, None)
        self._owed.note(table_id, owing.table, reason, stopped=stopped)
        await self._owed.save()

    async def _compare(self, table: LakeTable) -> None:
        thread, table_id = self._thread, table.id
        if thread.hangs(table_id):
            raise TableUnavailable(
                f"{table.database}.{table.name}: its storage still has not answered an earlier request"
            )
        rows = {row.schema_version: row for row in await self._store.list_table_metadata(table_id)}
        if not rows or not is_iceberg(rows.values()):
            self._owed.forget(table_id)
            return
        work = TableWork(table, rows)
        await self._probe(work)
        waiting = self._waiting[table_id] = _Waiting()
        async with self._snapshot(table_id) as (snapshot, compared):
            outcome = await Refresh(thread, table_id).run(snapshot)
        await self._done(table_id, outcome.unreferenced)
        failure = outcome.failed.get(table_id)
        if failure is not None:
            raise (TableProblem if failure.stopped else TableUnavailable)(failure.reason)
        while events := waiting.take():
            news = without(joined(table_id, events), compared)
            if splits(news, compared):
                raise TableUnavailable("the comparison contained a part of a transaction: comparing again")
            if news.transactions:
                await self._commit(news)
        self._waiting.pop(table_id, None)  # from here on events are committed again: nothing waits in between
        self._owed.settled(table_id, compared)

    async def _probe(self, work: TableWork) -> None:
        """Before anything is read from the registry: most attempts end here."""
        committer = self._thread.committer
        committer.tables.claimed = frozenset(identifier_of(table) for table in await self._store.list_tables())
        try:
            await self._thread.call(partial(committer.probe, work), table=work.table, brief=True)
        except (TableProblem, SchemaProblem) as problem:
            await self._thread.call(partial(committer.stop, work, str(problem)), table=work.table, brief=True)
            raise

    @asynccontextmanager
    async def _snapshot(self, table_id: int) -> AsyncIterator[tuple[ConsistentRead, Compared]]:
        """One that contains what was left out: PostgreSQL sends a commit a moment before others can see it."""
        deadline = self._clock.monotonic() + _VISIBLE_WITHIN_S
        while True:
            async with self._store.consistent_read() as snapshot:
                if self._owed.is_contained(table_id, snapshot.visibility):
                    yield snapshot, Compared(known_place(snapshot.visibility), await self._store.position())
                    return
            if self._clock.monotonic() > deadline:
                raise TableUnavailable("a transaction was committed but is still not visible")
            await asyncio.sleep(0.002)
