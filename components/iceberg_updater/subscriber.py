"""The subscriber: everything that waits becomes at most one Iceberg commit a table.

PyIceberg blocks, so it works on a thread of its own, one call after the other: the loop never waits for it, and what a
cancelled call still does is finished before its successor begins. A table that can't be committed to holds up nobody:
it owes a comparison with the registry (`owed`), which is tried again in the background (`comparisons`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import structlog
from pyiceberg.catalog import Catalog

from astha.errors import Retry
from astha.events import Commit, Event
from astha.subscribers import CheckResult, ComponentContext, Metric, Problem
from components.iceberg_updater.committer import NeedsComparison, TableWork, is_iceberg
from components.iceberg_updater.comparisons import Comparisons
from components.iceberg_updater.event_folding import TableEvents, by_table
from components.iceberg_updater.owed import Owed
from components.iceberg_updater.refresh import Refresh
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.thread import IcebergThread
from components.lib.lake.iceberg import (
    CatalogProbe,
    CatalogUnavailable,
    IcebergTables,
    Retention,
    TableProblem,
    TableUnavailable,
    open_catalog,
)
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.storage.location_checks import check_warehouse
from components.lib.lake.table_lookup import TableName
from components.lib.lake.updater_state import FailingTable
from registry.contract import ConsistentRead
from registry.errors import RegistryError
from registry.models import LakeTable, Row, TableFile, TableMetadata
from registry.privileges import Area

log = structlog.get_logger(__name__)

OWNER = "iceberg_updater"

_VISIBLE_WITHIN_S = 10.0

_IN_PLACE = 3
"""Attempts at a table within its lane: a moment's trouble is over then, and its commits are what they would have been.
After that the lane goes on without it."""


class IcebergUpdater:
    written_areas = frozenset((Area.LAKE,))

    def __init__(self, settings: UpdaterSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._thread: IcebergThread | None = None
        self._aside: IcebergThread | None = None
        self._probe = CatalogProbe(self._open_catalog)
        self._owed = Owed(self._store, context.clock, settings)
        self._comparisons: Comparisons | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._tables: dict[int, LakeTable] = {}
        self._metadata: dict[int, dict[int, TableMetadata]] = {}
        self._ignored: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._unreferenced: list[str] = []
        self._commits = self._snapshots = 0

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset((TableMetadata.table, TableFile.table))

    async def start(self) -> None:
        identity = await registry_identity(self._store)
        await self._owed.load()
        if self._thread is None:
            try:
                catalog = await asyncio.to_thread(self._open_catalog)
            except CatalogUnavailable as error:
                raise Retry(str(error)) from error
            limits = (self._settings.table_timeout_s, self._settings.probe_timeout_s)
            guard = self._context.clock_guard
            retention = Retention(self._settings.max_snapshots, None if guard is None else guard.steady)
            self._thread = IcebergThread("iceberg", IcebergTables(catalog, identity), retention, *limits)
            self._aside = IcebergThread("iceberg-owed", IcebergTables(catalog, identity), retention, *limits)
        if self._aside is not None:
            self._comparisons = Comparisons(
                self._store,
                self._context.clock,
                self._owed,
                self._aside,
                self._commit_events,
                self._drop_owing,
                self._compared,
            )
        self._compare_in_background()

    async def stop(self) -> None:
        self._probe.close()
        await self._stop_comparing()
        thread, self._thread = self._thread, None
        aside, self._aside = self._aside, None
        if aside is not None:
            await aside.close()
        if thread is not None:
            with suppress(CatalogUnavailable):
                await thread.call(thread.committer.tables.close)
            await thread.close()

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transactions([[event]])

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await self.on_transactions([events])

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        comparisons = self._opened_comparisons()
        found = by_table(transactions)
        if any(events.speaks_of_schema for events in found.values()):
            await self._until_visible(transactions[-1][-1].commit)
        again: list[str] = []
        for events in found.values():
            if comparisons.take(events):
                continue
            news = self._owed.news(events)
            if news is None:
                self._note(events, "the comparison contained a part of a transaction: comparing again", now=True)
            elif news.transactions:
                again += await self._deliver(news)
        await self._hand_over()
        await self._owed.save()  # before what was left out is acknowledged
        if again:
            raise Retry("; ".join(again))

    async def on_health(self) -> bool:
        """A commit under way, or a storage that hangs, says nothing about the catalog."""
        self._opened_thread()
        await self._probe.check()
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """All tables; those that can't be brought up to date owe a comparison."""
        await self._stop_comparing()
        self._tables.clear()
        self._metadata.clear()
        self._failures.clear()
        thread = self._opened_thread()
        try:
            outcome = await Refresh(thread).run(snapshot)
        except CatalogUnavailable as error:
            raise Retry(str(error)) from error
        finally:
            self._compare_in_background()
        self._unreferenced += outcome.unreferenced
        self._owed.forget_comparisons()  # the lane knows what this one contained
        for table_id in outcome.tables.keys() - outcome.failed.keys():
            self._owed.settled(table_id)
        for table_id, failure in outcome.failed.items():
            self._owed.note(table_id, failure.table, failure.reason, stopped=failure.stopped)
        for owing in self._owed:
            if owing.table_id not in outcome.tables and not _is_left(thread, owing):
                self._owed.forget(owing.table_id)
        await self._hand_over()
        await self._owed.save()
        self._compare_in_background()

    async def check(self) -> list[CheckResult]:
        return [await check_warehouse(self._context.lake)]

    def metrics(self) -> Iterator[Metric]:
        yield Metric("commits", "Commits to Iceberg tables, refreshes apart.", self._commits, kind="counter")
        yield Metric("snapshots", "Snapshots in those commits.", self._snapshots, kind="counter")
        for owing in self._owed:
            if owing.stopped:
                yield Metric("table_stopped", "1 for a table that needs a person.", 1, {"table": owing.table})
            else:
                told = "Attempts so far at a table that is behind, and is tried again."
                yield Metric("table_attempts", told, owing.attempts, {"table": owing.table})

    def problems(self) -> Iterator[Problem]:
        for owing in self._owed:
            yield Problem(owing.table, owing.reason, owing.since, owing.attempts, owing.next_try)

    async def _until_visible(self, commit: Commit) -> None:
        """On PostgreSQL the stream brings a commit a moment before others can read it; what is asked of the registry
        about a table must not be older than the event that made us ask.
        """
        deadline = self._context.clock.monotonic() + _VISIBLE_WITHIN_S
        while True:
            async with self._store.consistent_read() as snapshot:
                if snapshot.visibility.contains(commit.transaction, commit.position):
                    return
            if self._context.clock.monotonic() > deadline:
                raise Retry(f"transaction {commit.transaction} was committed but is still not visible")
            await asyncio.sleep(0.002)

    async def _deliver(self, events: TableEvents) -> list[str]:
        """One table's events. What keeps it from being committed to is noted, or answered if it may be over soon."""
        table_id, stopped, now = events.table_id, False, False
        try:
            await self._commit_events(events)
        except TableUnavailable as trouble:
            self._failures[table_id] += 1
            reason = str(trouble)
            if self._failures[table_id] < _IN_PLACE and not self._opened_thread().hangs(table_id):
                return [reason]
        except CatalogUnavailable as error:
            raise Retry(str(error)) from error
        except (TableProblem, SchemaProblem) as problem:
            stopped, reason = True, str(problem)
        except NeedsComparison as needs:
            now, reason = True, str(needs)
        except (RegistryError, Retry, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("unexpected trouble with a table", table_id=table_id)
            reason = f"unexpected trouble: {error!r}"
        else:
            self._failures.pop(table_id, None)
            return []
        self._failures.pop(table_id, None)
        self._note(events, reason, stopped=stopped, now=now)
        return []

    def _note(self, events: TableEvents, reason: str, *, stopped: bool = False, now: bool = False) -> None:
        table = self._tables.get(events.table_id)
        name = f"table {events.table_id}" if table is None else f"{table.database}.{table.name}"
        self._owed.note(events.table_id, name, reason, stopped=stopped, now=now)
        self._owed.leave_out(events)
        self._opened_comparisons().wake()

    async def _commit_events(self, events: TableEvents) -> None:
        work = await self._work(events)
        if work is None:
            return
        thread = self._opened_thread()
        done = await thread.call(partial(thread.committer.commit, work, events), table=work.table)
        if done is not None:
            self._commits += 1
            self._snapshots += done.snapshots
            self._unreferenced += done.unreferenced
            log.debug("committed", table=work.name, snapshots=done.snapshots, files=done.files)

    async def _compared(self, table_id: int, unreferenced: list[str]) -> None:
        """In the other thread: what is remembered here of the table is out of date."""
        tables = self._opened_thread().committer.tables
        tables.forget_one(table_id)
        self._tables.pop(table_id, None)
        self._metadata.pop(table_id, None)
        self._unreferenced += unreferenced
        await self._hand_over()

    async def _work(self, events: TableEvents) -> TableWork | None:
        """The table as the registry has it now. None if it is not, or no longer, for Iceberg."""
        table_id = events.table_id
        if events.speaks_of_schema:
            self._tables.pop(table_id, None)
        table = self._tables.get(table_id) or await self._store.get_table_by_id(table_id)
        if table is None:
            await self._drop(events)
            return None
        self._tables[table_id] = table
        known = self._metadata.setdefault(table_id, {})
        known.update((row.schema_version, row) for row in events.rows)
        for version in events.versions - known.keys():
            row = await self._store.get_table_metadata(table_id, version)
            if row is None:  # dropped this very moment: its events follow
                return None
            known[version] = row
        if not is_iceberg(known.values()):
            self._say_ignored(table, known)
            return None
        return TableWork(table, dict(known))

    async def _drop(self, events: TableEvents) -> None:
        self._tables.pop(events.table_id, None)
        self._metadata.pop(events.table_id, None)
        self._ignored.discard(events.table_id)
        if events.drops:
            await self._drop_table(events.table_id)

    async def _drop_owing(self, owing: FailingTable) -> None:
        """The registry has it no more. TableUnavailable if it can't be told whether the catalog still has it."""
        self._opened_thread().committer.tables.forget()
        await self._drop_table(owing.table_id)
        if _is_left(self._opened_thread(), owing):
            raise TableUnavailable(f"{owing.table} was dropped, and what the catalog has under its name can't be read")

    async def _drop_table(self, table_id: int) -> None:
        thread = self._opened_thread()
        tables = thread.committer.tables
        thread.committer.forget(table_id)
        purged = await self._store.list_files_awaiting_deletion(table_id=table_id, limit=1)
        files = await thread.call(lambda: tables.metadata_files(table_id)) if purged else []
        if await thread.call(lambda: tables.drop(table_id)):
            self._unreferenced += files  # not before it is gone: the cleaner asks nobody
            log.info("Iceberg table dropped", table_id=table_id)

    def _say_ignored(self, table: LakeTable, known: dict[int, TableMetadata]) -> None:
        if table.id not in self._ignored:
            self._ignored.add(table.id)
            kind = known[max(known)].format
            log.info("table is not for Iceberg", table=f"{table.database}.{table.name}", format=kind)

    async def _hand_over(self) -> None:
        """Metadata files that no snapshot needs go to the cleaner, which removes them when readers are done."""
        paths, self._unreferenced = self._unreferenced, []
        if not paths:
            return
        try:
            await self._store.record_intents(paths, purpose="metadata", owner=OWNER)
        except RegistryError as error:
            self._unreferenced += paths
            log.warning("can't hand over old metadata files yet", files=len(paths), error=str(error))

    def _open_catalog(self) -> Catalog:
        return open_catalog(self._context.registry_url.get_secret_value(), self._context.lake)

    def _opened_thread(self) -> IcebergThread:
        if self._thread is None:
            raise Retry("the catalog is not open")
        return self._thread

    def _opened_comparisons(self) -> Comparisons:
        if self._comparisons is None:
            raise Retry("the catalog is not open")
        return self._comparisons

    def _compare_in_background(self) -> None:
        if self._comparing is None and self._comparisons is not None:
            self._comparing = asyncio.create_task(self._comparisons.run(), name="iceberg comparisons")

    async def _stop_comparing(self) -> None:
        task, self._comparing = self._comparing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _is_left(thread: IcebergThread, owing: FailingTable) -> bool:
    """Whether the catalog has something under the name of a dropped table that can't be read now."""
    return thread.committer.tables.is_unreadable(TableName.parse(owing.table).identifier)
