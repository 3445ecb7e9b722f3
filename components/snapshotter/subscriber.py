"""The subscriber: keeps the books, sees requests through in the background, and does its upkeep now and then.

Nothing here holds up a delivery: what takes time is a task. Whatever a stop or a crash interrupts is found again in
the registry by the next start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog
from pyiceberg.catalog import Catalog

from astha.clock_guard import may_delete_by_age
from astha.errors import Retry
from astha.events import Event
from astha.subscribers import ComponentContext, Metric, Problem
from components.lib.lake.iceberg import CatalogProbe, IcebergTables, TableUnavailable, open_catalog
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.registration.upload_intents import warn_if_not_cleaned
from components.lib.lake.storage.objects import Objects
from components.lib.problem_tracker import ProblemTracker
from components.snapshotter.expiration import Lifecycle
from components.snapshotter.settings import SnapshotterSettings
from components.snapshotter.snapshot_requests import Requests
from components.snapshotter.table_state import Books, awaits_release
from components.snapshotter.turns import Due, DueTables, Turns
from registry.contract import ConsistentRead
from registry.errors import NotFound, RegistryError
from registry.models import Row, TableFile, TableMetadata, TableSnapshot
from registry.position import Position, SnapshotVisibility
from registry.privileges import Area

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LOOPS = ("watching time", "upkeep")
_AGAIN_S, _LONGEST_WAIT_S = 1.0, 300.0
_FAILURES_TOLD = 3
"""Failures of a loop in a row from which on the component is not healthy."""

_LONGEST_CALL_S = 900.0
"""A call to the catalog, or to one table's storage, that takes longer hangs."""


class Snapshotter:
    written_areas = frozenset((Area.LAKE,))
    durable = False

    def __init__(self, settings: SnapshotterSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._books = Books(settings.policy)
        self._contained: tuple[SnapshotVisibility, Position] | None = None  # what was loaded into the books
        self._thread: ThreadPoolExecutor | None = None
        self._tables: IcebergTables | None = None
        self._probe = CatalogProbe(self._open_catalog)
        self._turns = Turns(settings.at_once)
        self._due = DueTables(self._request)
        self._asked: dict[int, int] = {}  # by table: the row of our last request, until its event has come
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._tally: Counter[str] = Counter()
        self._troubles = ProblemTracker(context.clock)

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset((TableMetadata.table, TableFile.table, TableSnapshot.table))

    async def start(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        if self._tables is None:
            self._tables = await self._call(partial(self._opened, await registry_identity(self._store)))

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._due.clear()
        self._probe.close()
        tables, self._tables = self._tables, None
        if tables is not None:
            await self._call(tables.close)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transaction([event])

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        first = events[0]
        if self._has(first):
            return
        touched: set[int] = set()
        for event in events:
            self._books.apply(event)
            row = event.data
            if isinstance(row, TableSnapshot):
                if row.id >= self._asked.get(row.table_id, row.id + 1):
                    del self._asked[row.table_id]
                if row.status == "requested":
                    self._fulfil(row, event.position)
            elif isinstance(row, TableFile | TableMetadata):
                touched.add(row.table_id)
        for table_id in touched:
            self._ask_if_due(table_id)

    def _has(self, event: Event[Row]) -> bool:
        """Whether the books were loaded with it. Transaction numbers come round: a later position is news by itself."""
        if self._contained is None:
            return False
        place, until = self._contained
        return event.position <= until and place.contains(event.transaction, event.position)

    async def on_health(self) -> bool:
        for loop in _LOOPS:
            failing = self._troubles.get(("loop", loop))
            if failing is not None and failing.attempts >= _FAILURES_TOLD:
                raise RuntimeError(f"{failing.subject} has failed {failing.attempts} times in a row: {failing.reason}")
        self._opened_tables()
        await self._probe.check()
        return True

    def metrics(self) -> Iterator[Metric]:
        waiting = sum(book.waiting for _, book in self._books)
        yield Metric("tables_due", "Tables whose snapshot is due and not yet requested.", len(self._due))
        yield Metric("tables_waiting", "Tables of which a snapshot was asked for and is not there yet.", waiting)
        for status in ("created", "failed", "expired"):
            told = "Snapshots by what became of them."
            yield Metric("snapshots", told, self._tally[status], {"status": status}, kind="counter")
        yield Metric("files_deleted", "Files that no snapshot needed any more.", self._tally["files"], kind="counter")
        yield Metric("upkeep_failures", "Steps of upkeep to be repeated.", self._tally["failures"], kind="counter")

    def problems(self) -> Iterator[Problem]:
        self._troubles.keep(lambda key: not isinstance(key[1], int) or self._books.of(key[1]) is not None)
        yield from self._troubles.listed()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        books = Books(self._settings.policy)  # other tasks look for due tables meanwhile: they must not see half of it
        await books.load(snapshot)
        position = await self._store.position()
        self._books, self._contained = books, (snapshot.visibility, position)
        self._remember_requests()
        for table_id, book in self._books:
            for row in list(book.rows.values()):
                if row.status == "requested":
                    self._fulfil(row, position)
            self._ask_if_due(table_id)
        for number in range(self._settings.at_once):
            self._begin(("requests", number), self._always("requesting snapshots", self._due.work))
        self._begin("time", self._always("watching time", self._watch_time))
        self._begin("upkeep", self._always("upkeep", self._keep_up))

    def _remember_requests(self) -> None:
        """Requests that were made after the snapshot was taken are not in it; their events follow."""
        for table_id, row_id in list(self._asked.items()):
            book = self._books.of(table_id)
            if book is None or book.newest >= row_id:
                del self._asked[table_id]
            else:
                book.asking = True

    def _fulfil(self, row: TableSnapshot, position: Position) -> None:
        settings, tables = self._settings, self._opened_tables()
        requests = Requests(
            self._store, tables, self._call, self._clock, settings.wait_s, self._turns, updater=settings.updater
        )

        async def see_through() -> None:
            self._turns.open += 1
            try:
                done = await requests.fulfil(row, position)
            finally:
                self._turns.open -= 1
            self._tally["gone" if done is None else done.status] += 1
            if done is not None and done.status == "created":
                log.info("snapshot created", table_id=row.table_id, tag=done.tag, snapshot=done.snapshot_id)

        self._begin(("request", row.id), see_through())

    def _ask_if_due(self, table_id: int) -> None:
        book = self._books.of(table_id)
        due = None if book is None else book.due(self._clock.now_ms(), int(self._settings.retry_after_s * 1000))
        if book is None or due is None or table_id in self._due.busy:
            return
        book.asking = True
        self._due.add(table_id, due)

    async def _request(self, table_id: int, due: Due) -> None:
        trigger, reason = due
        try:
            row = await self._store.request_snapshot(table_id, trigger=trigger, reason=reason)
        except NotFound:
            pass
        except RegistryError as error:
            if (book := self._books.of(table_id)) is not None:
                book.asking = False
            log.warning("no snapshot could be asked for", table_id=table_id, error=str(error))
        else:
            book = self._books.of(table_id)
            if book is not None and book.newest < row.id:
                book.asking = True
                self._asked[table_id] = row.id

    async def _watch_time(self) -> None:
        while True:
            await self._clock.sleep(self._settings.check_every_s)
            for table_id, _ in self._books:
                self._ask_if_due(table_id)
            self._troubles.worked(("loop", "watching time"))

    async def _keep_up(self) -> None:
        """The first round at once: a daemon may never live until the second."""
        while True:
            await self.upkeep()
            self._troubles.worked(("loop", "upkeep"))
            await self._clock.sleep(self._settings.upkeep_every_s)

    async def _always(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """A fault of ours must not end for good what the daemon counts on: the loop begins again, ever later."""
        while True:
            try:
                await loop()
            except Exception as error:
                log.exception("a loop of the snapshotter has failed, and begins again", loop=name)
                known = self._troubles.get(("loop", name))
                wait_s = min(_AGAIN_S * 2 ** min(0 if known is None else known.attempts, 10), _LONGEST_WAIT_S)
                next_try = self._clock.now_ms() + int(wait_s * 1000)
                self._troubles.failed(("loop", name), name, repr(error), next_try=next_try)
                await self._clock.sleep(wait_s)

    async def upkeep(self) -> None:
        """One round of expiry and cleaning, unless the clock can't be trusted. What fails is logged, and done in the
        next one.
        """
        settings = self._settings
        if not await may_delete_by_age(self._context.clock_guard):
            return
        lifecycle = Lifecycle(
            self._store,
            self._opened_tables(),
            self._call,
            Objects(self._context.lake),
            self._clock,
            defaults=settings.policy,
            updater=settings.updater,
        )
        for table_id, book in self._books:
            if book.policy.expires or any(awaits_release(row) for row in book.rows.values()):
                await self._attempt("expiry", partial(self._expire, lifecycle, table_id), table_id)
        await self._attempt("cleaning", partial(self._clean, lifecycle))
        stale_after_s = self._context.lake.intents_stale_after_s
        await self._attempt("cleaning", partial(warn_if_not_cleaned, self._store, stale_after_s))

    async def _expire(self, lifecycle: Lifecycle, table_id: int) -> None:
        table = await self._store.get_table_by_id(table_id)
        if table is None:
            return
        report = await lifecycle.expire(table)
        self._tally["expired"] += len(report.gone)
        for verdict in report.gone:
            log.info("snapshot expired", table=report.table, tag=verdict.name, why=verdict.why)

    async def _clean(self, lifecycle: Lifecycle) -> None:
        graces = [self._settings.policy.grace_ms, *(book.policy.grace_ms for _, book in self._books)]
        reports = await lifecycle.clean(removed_before=self._clock.now_ms() - min(graces) + 1)
        bad = {("files", report.table) for report in reports if report.problem is not None}
        self._troubles.keep(lambda key: key[0] != "files" or key in bad)
        for report in reports:
            self._tally["files"] += len(report.gone)
            if report.problem is not None:
                self._troubles.failed(("files", report.table), report.table, report.problem, next_try=self._next())
                log.warning("files of a table can't be cleaned now", table=report.table, problem=report.problem)

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]], table_id: int | None = None) -> None:
        """One table's trouble is its own: the next step is taken all the same."""
        try:
            await step()
        except Exception as error:
            self._tally["failures"] += 1
            log.warning("upkeep failed, will be tried again", step=what, table_id=table_id, error=repr(error))
            subject = what if table_id is None else await self._name(table_id)
            self._troubles.failed((what, table_id), subject, f"{what}: {error}", next_try=self._next())
        else:
            self._troubles.worked((what, table_id))

    def _next(self) -> int:
        """When the next round of upkeep begins, about."""
        return self._clock.now_ms() + int(self._settings.upkeep_every_s * 1000)

    async def _name(self, table_id: int) -> str:
        try:
            table = await self._store.get_table_by_id(table_id)
        except RegistryError:
            table = None
        return f"table {table_id}" if table is None else f"{table.database}.{table.name}"

    def _begin(self, key: object, work: Coroutine[None, None, None]) -> None:
        """One task a key; an error in it is logged, and found again at the next start."""
        if key in self._tasks:
            work.close()
            return
        task = asyncio.create_task(work, name=f"snapshotter {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: object, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the snapshotter has failed", task=task.get_name(), error=repr(error))

    def _opened(self, identity: str) -> IcebergTables:
        return IcebergTables(self._open_catalog(), identity)

    def _open_catalog(self) -> Catalog:
        return open_catalog(self._context.registry_url.get_secret_value(), self._context.lake)

    def _opened_tables(self) -> IcebergTables:
        if self._tables is None:
            raise Retry("the catalog is not open")
        return self._tables

    async def _call(self, work: Callable[[], T]) -> T:
        """TableUnavailable if it does not come back: it is left behind with its thread, and later calls get another."""
        thread = self._thread
        call = asyncio.get_running_loop().run_in_executor(thread, work)
        try:
            done, _ = await asyncio.wait({call}, timeout=_LONGEST_CALL_S)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if done:
            return call.result()
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if thread is not None and self._thread is thread:
            thread.shutdown(wait=False)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        raise TableUnavailable(f"a table's storage has not answered within {_LONGEST_CALL_S:g} s")
