"""The subscriber: maintains table states from events, and runs requests and maintenance in the background.

No delivery waits for background work. What a stop or a crash interrupts is found in the registry at the next start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog
from pyiceberg.catalog import Catalog

from astha.subscribers import (
    Area,
    Commit,
    Component,
    ComponentContext,
    ConsistentRead,
    Event,
    Metric,
    OperationRefused,
    Position,
    Problem,
    Retry,
    Row,
    TableFile,
    TableMetadata,
    TableSnapshot,
)
from astha.tasks import BackgroundTasks
from components.lib.lake.iceberg import (
    CatalogProbe,
    CatalogUnavailable,
    IcebergTables,
    TableProblem,
    TableUnavailable,
    open_catalog,
)
from components.lib.lake.iceberg.catalog_thread import CallAbandoned, CatalogThread
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import find_table
from components.lib.problem_tracker import ProblemTracker
from components.snapshotter.maintenance import SnapshotMaintenance
from components.snapshotter.request_scheduling import RequestScheduler
from components.snapshotter.rollback import CantRollBack, Rollback
from components.snapshotter.settings import SnapshotterSettings
from components.snapshotter.snapshot_requests import RequestLimiter, SnapshotRequests
from components.snapshotter.table_state import TableStates

log = structlog.get_logger(__name__)

T = TypeVar("T")

_TIME_TRIGGERS = "time triggers"
_MAINTENANCE = "maintenance"
_UNHEALTHY_AFTER = 3
"""Failures in a row of a background loop after which the component is unhealthy."""

_CALL_TIMEOUT_S = 900.0
"""A call to the catalog, or to one table's storage, that takes longer counts as hanging."""


class Snapshotter(Component):
    tables = (TableMetadata, TableFile, TableSnapshot)
    durable = False
    written_areas = frozenset((Area.LAKE,))
    operations = frozenset({"rollback"})

    def __init__(self, settings: SnapshotterSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._states = TableStates(settings.policy)
        self._thread = CatalogThread("snapshotter")
        self._tables: IcebergTables | None = None
        self._probe = CatalogProbe(self._open_catalog)
        self._limiter = RequestLimiter(settings.max_concurrent_requests)
        self._scheduler = RequestScheduler(self._store, self._clock, self._states, settings.retry_after_s)
        self._problems = ProblemTracker(context.clock)
        self._maintenance = SnapshotMaintenance(settings, context, self._problems)
        self._background = BackgroundTasks("snapshotter", context.clock)
        self._results: Counter[str] = Counter()

    async def start(self) -> None:
        if self._tables is None:
            self._tables = await self._call(partial(self._open_tables, await registry_identity(self._store)))

    async def stop(self) -> None:
        await self._background.stop()
        self._scheduler.due.clear()
        self._probe.close()
        tables, self._tables = self._tables, None
        if tables is not None:
            await self._call(tables.close)
        await self._thread.close(timeout_s=0)
        self._thread = CatalogThread("snapshotter")

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        changed: set[int] = set()
        for event in events:
            self._states.apply(event)
            row = event.data
            if isinstance(row, TableSnapshot):
                self._scheduler.observe(row)
                if row.status == "requested":
                    self._fulfil(row, event.position, event.commit)
            elif isinstance(row, TableFile | TableMetadata):
                changed.add(row.table_id)
        for table_id in changed:
            self._scheduler.request_if_due(table_id)

    async def on_health(self) -> bool:
        for loop in (_TIME_TRIGGERS, _MAINTENANCE):
            failing = self._problems.get(("loop", loop))
            if failing is not None and failing.attempts >= _UNHEALTHY_AFTER:
                raise RuntimeError(f"{failing.subject} has failed {failing.attempts} times in a row: {failing.reason}")
        self._opened_tables()
        await self._probe.check()
        return True

    def metrics(self) -> Iterator[Metric]:
        done = self._maintenance
        open_requests = sum(state.has_open_request for _, state in self._states)
        yield Metric("tables_due", "Tables whose snapshot is due and not yet requested.", len(self._scheduler.due))
        yield Metric("tables_waiting", "Tables with an open snapshot request.", open_requests)
        results = {"created": self._results["created"], "failed": self._results["failed"], "expired": done.expired}
        for status, count in results.items():
            yield Metric("snapshots", "Snapshots by result.", count, {"status": status}, kind="counter")
        yield Metric("files_deleted", "Deleted files that no snapshot needed.", done.files_deleted, kind="counter")
        yield Metric("maintenance_failures", "Failed maintenance steps.", done.failures, kind="counter")

    def problems(self) -> Iterator[Problem]:
        self._problems.keep(lambda key: not isinstance(key[1], int) or self._states.get(key[1]) is not None)
        yield from self._problems.listed()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        states = TableStates(self._settings.policy)  # replaced as a whole: background tasks must not see half of it
        await states.load(snapshot)
        position = await self._store.position()
        self._states = states
        self._scheduler.replace_states(states)
        for table_id, state in states:
            for row in list(state.rows.values()):
                if row.status == "requested":
                    self._fulfil(row, position)
            self._scheduler.request_if_due(table_id)
        for number in range(self._settings.max_concurrent_requests):
            self._background.supervise(f"snapshot requests {number}", self._scheduler.due.work)
        for name, loop in ((_TIME_TRIGGERS, self._request_by_time), (_MAINTENANCE, self._maintain)):
            self._background.supervise(name, partial(self._noting_failures, name, loop))

    async def operate(self, operation: str, table: str, arguments: Mapping[str, str]) -> object:
        """`rollback`: with `dry_run`, only returns what would change."""
        if self._tables is None:
            raise OperationRefused("the snapshotter has not opened its catalog yet: try again")
        rollback = Rollback(self._store, self._tables, self._call, Objects(self._context.lake))
        found, snapshot = await find_table(self._store, table), arguments.get("snapshot", "")
        dry_run = bool(arguments.get("dry_run"))
        try:
            plan = await (rollback.plan(found, snapshot) if dry_run else rollback.roll_back(found, snapshot))
        except (CantRollBack, CatalogUnavailable, TableProblem) as error:
            raise OperationRefused(str(error)) from error
        return {
            "table": table,
            "snapshot_id": str(plan.snapshot_id),
            "dry_run": dry_run,
            "removed": len(plan.removed),
            "restored": len(plan.restored),
            "rows": plan.rows,
        }

    async def maintain(self) -> None:
        """Runs one round of maintenance."""
        await self._maintenance.run_round(self._opened_tables(), self._call, self._states)

    def _fulfil(self, row: TableSnapshot, position: Position, commit: Commit | None = None) -> None:
        settings = self._settings
        requests = SnapshotRequests(
            self._store,
            self._opened_tables(),
            self._call,
            self._clock,
            settings.request_timeout_s,
            self._limiter,
            updater=settings.updater,
        )

        async def fulfil() -> None:
            self._limiter.open_requests += 1
            try:
                with self._context.trace("snapshot", commit, table_id=row.table_id, request=row.id) as span:
                    done = await requests.fulfil(row, position)
                    if done is not None:
                        span.set(status=done.status, tag=done.tag or "")
                        if done.status == "failed":
                            span.fail(done.reason or "failed")
            finally:
                self._limiter.open_requests -= 1
            if done is not None:
                self._results[done.status] += 1
                if done.status == "created":
                    log.info("snapshot created", table_id=row.table_id, tag=done.tag, snapshot=done.snapshot_id)

        self._background.start(("request", row.id), fulfil())

    async def _request_by_time(self) -> None:
        while True:
            await self._clock.sleep(self._settings.check_every_s)
            self._scheduler.request_all_due()
            self._problems.worked(("loop", _TIME_TRIGGERS))

    async def _maintain(self) -> None:
        """Starts with a round: a daemon that restarts often would never get to one otherwise."""
        while True:
            await self.maintain()
            self._problems.worked(("loop", _MAINTENANCE))
            await self._clock.sleep(self._settings.maintenance_every_s)

    async def _noting_failures(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except Exception as error:
            self._problems.failed(("loop", name), name, repr(error))
            raise

    def _open_tables(self, identity: str) -> IcebergTables:
        return IcebergTables(self._open_catalog(), identity)

    def _open_catalog(self) -> Catalog:
        return open_catalog(self._context.registry_url.get_secret_value(), self._context.lake)

    def _opened_tables(self) -> IcebergTables:
        if self._tables is None:
            raise Retry("the catalog is not open")
        return self._tables

    async def _call(self, work: Callable[[], T]) -> T:
        """Raises `TableUnavailable` if the call hangs; it is abandoned then, and later calls use another thread."""
        try:
            return await self._thread.call(work, timeout_s=_CALL_TIMEOUT_S)
        except CallAbandoned as abandoned:
            raise TableUnavailable(f"storage has not answered within {_CALL_TIMEOUT_S:g} s") from abandoned
