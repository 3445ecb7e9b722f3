"""Rounds of maintenance: expiration of snapshots, and deletion of files that no snapshot needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from astha.clock_guard import may_delete_by_age
from astha.subscribers import ComponentContext
from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.registration.upload_intents import warn_if_not_cleaned
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import full_name
from components.lib.problem_tracker import ProblemTracker
from components.snapshotter.expiration import SnapshotExpiration, anything_due
from components.snapshotter.file_cleanup import FileCleanup
from components.snapshotter.settings import SnapshotterSettings
from components.snapshotter.snapshot_requests import BlockingCall
from components.snapshotter.table_state import TableStates
from registry.errors import RegistryError

log = structlog.get_logger(__name__)


class SnapshotMaintenance:
    """Counts since construction; `failures` counts steps, each of which is repeated in the next round."""

    def __init__(self, settings: SnapshotterSettings, context: ComponentContext, problems: ProblemTracker) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._problems = problems
        self.expired = 0
        self.files_deleted = 0
        self.failures = 0

    async def run_round(self, tables: IcebergTables, call: BlockingCall, states: TableStates) -> None:
        """Does nothing while the clock cannot be trusted. A failed step does not prevent the next one."""
        if not await may_delete_by_age(self._context.clock_guard):
            return
        policy = self._settings.policy
        expiration = SnapshotExpiration(self._store, tables, call, self._clock, policy)
        for table_id, state in states:
            if anything_due(state.rows.values(), state.policy, self._clock.now_ms()):
                await self._attempt("expiration", partial(self._expire, expiration, table_id), table_id)
            else:
                self._problems.worked(("expiration", table_id))
        cleanup = FileCleanup(
            self._store,
            tables,
            call,
            Objects(self._context.lake),
            self._clock,
            defaults=policy,
            updater=self._settings.updater,
        )
        shortest_grace_ms = min([policy.grace_ms, *(state.policy.grace_ms for _, state in states)])
        await self._attempt("cleanup", partial(self._clean, cleanup, shortest_grace_ms))
        stale_after_s = self._context.lake.intents_stale_after_s
        await self._attempt("cleanup", partial(warn_if_not_cleaned, self._store, stale_after_s))

    async def _expire(self, expiration: SnapshotExpiration, table_id: int) -> None:
        table = await self._store.get_table_by_id(table_id)
        if table is None:
            return
        report = await expiration.expire(table)
        self.expired += len(report.removed)
        for decision in report.removed:
            log.info("snapshot expired", table=report.table, tag=decision.name, reason=decision.reason)

    async def _clean(self, cleanup: FileCleanup, shortest_grace_ms: int) -> None:
        reports = await cleanup.clean(removed_before=self._clock.now_ms() - shortest_grace_ms + 1)
        failed = {("files", report.table) for report in reports if report.problem is not None}
        self._problems.keep(lambda key: key[0] != "files" or key in failed)
        for report in reports:
            self.files_deleted += len(report.removed)
            if report.problem is not None:
                next_try = self._next_round()
                self._problems.failed(("files", report.table), report.table, report.problem, next_try=next_try)
                log.warning("files not deleted", table=report.table, problem=report.problem)

    async def _attempt(self, step: str, work: Callable[[], Awaitable[object]], table_id: int | None = None) -> None:
        try:
            await work()
        except Exception as error:
            self.failures += 1
            log.warning("maintenance step failed", step=step, table_id=table_id, error=repr(error))
            subject = step if table_id is None else await self._table_name(table_id)
            self._problems.failed((step, table_id), subject, f"{step}: {error}", next_try=self._next_round())
        else:
            self._problems.worked((step, table_id))

    def _next_round(self) -> int:
        return self._clock.now_ms() + int(self._settings.maintenance_every_s * 1000)

    async def _table_name(self, table_id: int) -> str:
        try:
            table = await self._store.get_table_by_id(table_id)
        except RegistryError:
            table = None
        return f"table {table_id}" if table is None else full_name(table)
