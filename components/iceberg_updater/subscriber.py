"""The subscriber: commits all pending transactions of a table as at most one Iceberg commit.

PyIceberg blocks, so it runs on a thread of its own (`committer_thread`), one call after the other. A table that cannot
be committed to does not block the lane: its refresh becomes pending (`pending_refreshes`) and is retried in the
background (`table_refresher`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

import structlog
from pyiceberg.catalog import Catalog

from astha.subscribers import (
    Area,
    CheckResult,
    Commit,
    Component,
    ComponentContext,
    ConsistentRead,
    Event,
    IcebergCommit,
    Metric,
    Problem,
    RegistryError,
    Retry,
    Row,
    TableDeleteFile,
    TableFile,
    TableMetadata,
)
from astha.tasks import BackgroundTasks
from components.iceberg_updater.committer import NeedsRefresh
from components.iceberg_updater.committer_thread import CommitterThread
from components.iceberg_updater.event_committer import OWNER, EventCommitter, UnreferencedMetadata
from components.iceberg_updater.event_folding import TableEvents, by_table, committed_by_engines
from components.iceberg_updater.pending_refreshes import PendingRefreshes
from components.iceberg_updater.refresh import IcebergRefresh
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.table_refresher import TableRefresher
from components.iceberg_updater.target_tables import TargetTables
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

log = structlog.get_logger(__name__)

_VISIBLE_WITHIN_S = 10.0

_ATTEMPTS_IN_LANE = 3
"""Deliveries of a table that fail before the lane goes on without it. A short outage then does not change the
snapshots that readers see."""


class IcebergUpdater(Component):
    tables = (TableMetadata, TableFile, TableDeleteFile, IcebergCommit)
    durable = True
    written_areas = frozenset((Area.LAKE,))

    def __init__(self, settings: UpdaterSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._thread: CommitterThread | None = None
        self._refresh_thread: CommitterThread | None = None
        self._probe = CatalogProbe(self._open_catalog)
        self._pending = PendingRefreshes(self._store, context.clock, settings)
        self._refresher: TableRefresher | None = None
        self._background = BackgroundTasks(OWNER, context.clock)
        self._targets = TargetTables(self._store)
        self._unreferenced = UnreferencedMetadata(self._store)
        self._committer = EventCommitter(
            self._store, self._targets, self._unreferenced, self._opened_thread, context.tracer
        )
        self._failures: Counter[int] = Counter()

    async def start(self) -> None:
        identity = await registry_identity(self._store)
        await self._pending.load()
        if self._thread is None:
            try:
                catalog = await asyncio.to_thread(self._open_catalog)
            except CatalogUnavailable as error:
                raise Retry(str(error)) from error
            self._open_threads(catalog, identity)
        self._start_refresher()

    async def stop(self) -> None:
        self._probe.close()
        await self._background.stop()
        thread, self._thread = self._thread, None
        refresh_thread, self._refresh_thread = self._refresh_thread, None
        self._refresher = None
        if refresh_thread is not None:
            await refresh_thread.close()
        if thread is not None:
            with suppress(CatalogUnavailable):
                await thread.call(thread.committer.tables.close)
            await thread.close()

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        refresher = self._opened_refresher()
        found, engines = by_table(transactions), committed_by_engines(transactions)
        if any(events.changes_schema for events in found.values()) or any(map(self._committer.is_new, engines)):
            await self._until_visible(transactions[-1][-1].commit)
        for table_id in engines:
            await self._committer.follow_engine(table_id)
        failed: list[str] = []
        for events in found.values():
            if refresher.take(events):
                continue
            new = self._pending.new_events(events)
            if new is None:
                self._skip(events, "the refresh contained only a part of a transaction: refreshing again", now=True)
            elif new.transactions:
                failed += await self._deliver(new)
        await self._unreferenced.hand_over()
        await self._pending.save()  # before the skipped transactions are acknowledged
        if failed:
            raise Retry("; ".join(failed))

    async def on_health(self) -> bool:
        """Asks the catalog on a thread of its own: a commit in flight, or storage that hangs, is not its failure."""
        self._opened_thread()
        for task, reason in self._background.failing().items():
            raise RuntimeError(f"{task} failed and waits for its restart: {reason}")
        await self._probe.check()
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Refreshes all tables. The refresh of a table that fails becomes pending."""
        await self._background.stop()
        self._targets.clear()
        self._failures.clear()
        try:
            result = await IcebergRefresh(self._store, self._opened_thread()).run(snapshot)
        except CatalogUnavailable as error:
            raise Retry(str(error)) from error
        finally:
            self._start_refresher()
        self._unreferenced.add(result.unreferenced)
        self._pending.forget_completed()  # the lane knows what this snapshot contained
        for table_id in result.tables.keys() - result.failed.keys():
            self._pending.complete(table_id)
        for table_id, failure in result.failed.items():
            self._pending.add(table_id, failure.table, failure.reason, stopped=failure.stopped)
        for pending in self._pending:
            if pending.table_id not in result.tables and not self._committer.is_unreadable(pending):
                self._pending.remove(pending.table_id)
        await self._unreferenced.hand_over()
        await self._pending.save()
        self._start_refresher()

    async def check(self) -> list[CheckResult]:
        return [await check_warehouse(self._context.lake)]

    def metrics(self) -> Iterator[Metric]:
        committer = self._committer
        yield Metric("commits", "Commits to Iceberg tables, without refreshes.", committer.commits, kind="counter")
        yield Metric("snapshots", "Snapshots in those commits.", committer.snapshots, kind="counter")
        for pending in self._pending:
            labels = {"table": pending.table}
            if pending.stopped:
                yield Metric("table_stopped", "1 for a table that waits for an operator.", 1, labels)
            else:
                text = "Failed attempts to update a table, which is retried."
                yield Metric("table_attempts", text, pending.attempts, labels)

    def problems(self) -> Iterator[Problem]:
        for pending in self._pending:
            reason = pending.reason.removeprefix(f"{pending.table}: ")  # the subject is shown before it
            yield Problem(pending.table, reason, pending.since, pending.attempts, pending.next_try)

    async def _until_visible(self, commit: Commit) -> None:
        """Waits until other sessions can see the commit: PostgreSQL sends it a moment before, and what is read from the
        registry about a table must not be older than its event.
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
        """Commits one table's events, or makes its refresh pending. Returns the reason if the lane should retry."""
        table_id, stopped, now = events.table_id, False, False
        try:
            await self._committer.commit(events)
        except TableUnavailable as trouble:
            self._failures[table_id] += 1
            reason = str(trouble)
            if self._failures[table_id] < _ATTEMPTS_IN_LANE and not self._opened_thread().is_hanging(table_id):
                return [reason]
        except CatalogUnavailable as error:
            raise Retry(str(error)) from error
        except (TableProblem, SchemaProblem) as problem:
            stopped, reason = True, str(problem)
        except NeedsRefresh as needs:
            now, reason = True, str(needs)
        except (RegistryError, Retry, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("commit failed unexpectedly", table_id=table_id)
            reason = f"unexpected error: {error!r}"
        else:
            self._failures.pop(table_id, None)
            return []
        self._failures.pop(table_id, None)
        self._skip(events, reason, stopped=stopped, now=now)
        return []

    def _skip(self, events: TableEvents, reason: str, *, stopped: bool = False, now: bool = False) -> None:
        name = self._targets.name(events.table_id)
        self._pending.add(events.table_id, name, reason, stopped=stopped, now=now)
        self._pending.skip(events)
        self._opened_refresher().wake()

    def _open_catalog(self) -> Catalog:
        return open_catalog(self._context.registry_url.get_secret_value(), self._context.lake)

    def _open_threads(self, catalog: Catalog, identity: str) -> None:
        limits = (self._settings.table_timeout_s, self._settings.probe_timeout_s)
        guard = self._context.clock_guard
        retention = Retention(self._settings.max_snapshots, None if guard is None else guard.steady)
        self._thread = CommitterThread("iceberg", IcebergTables(catalog, identity), retention, *limits)
        self._refresh_thread = CommitterThread("iceberg refresh", IcebergTables(catalog, identity), retention, *limits)
        self._refresher = TableRefresher(
            self._store,
            self._context.clock,
            self._pending,
            self._refresh_thread,
            self._committer.commit,
            self._committer.drop_pending,
            self._committer.after_refresh,
        )

    def _opened_thread(self) -> CommitterThread:
        if self._thread is None:
            raise Retry("the catalog is not open")
        return self._thread

    def _opened_refresher(self) -> TableRefresher:
        if self._refresher is None:
            raise Retry("the catalog is not open")
        return self._refresher

    def _start_refresher(self) -> None:
        if self._refresher is not None:
            self._background.supervise("table refresher", self._refresher.run)
