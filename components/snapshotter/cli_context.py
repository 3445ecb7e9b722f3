"""What each command works with: the registry, the Iceberg catalog and storage, opened for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from astha.cli.exit_codes import Exit, Failure
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings
from astha.validation_errors import described
from components.lib.lake.lake_session import LakeSession, run_with_lake
from components.lib.lake.table_lookup import find_table, full_name
from components.lib.ledger_entry import ledger_entry
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.snapshotter.expiration import SnapshotExpiration
    from components.snapshotter.file_cleanup import FileCleanup
    from components.snapshotter.retention import RetentionReport
    from components.snapshotter.rollback import Rollback
    from components.snapshotter.settings import SnapshotterSettings

T = TypeVar("T")

COMPONENT = "snapshotter"


class CliContext:
    def __init__(self, lake: LakeSession) -> None:
        self.settings = lake.settings
        self.store = lake.store
        self.clock = lake.clock
        self._lake = lake

    async def expiration(self) -> SnapshotExpiration:
        """With the daemon's default policy."""
        from components.snapshotter.expiration import SnapshotExpiration

        defaults = self._component_settings().policy
        return SnapshotExpiration(self.store, await self._lake.iceberg_tables(), call, self.clock, defaults)

    async def cleanup(self) -> FileCleanup:
        """With the daemon's default policy."""
        from components.snapshotter.file_cleanup import FileCleanup

        chosen = self._component_settings()
        return FileCleanup(
            self.store,
            await self._lake.iceberg_tables(),
            call,
            self._lake.objects,
            self.clock,
            defaults=chosen.policy,
            updater=chosen.updater,
        )

    async def rollback(self) -> Rollback:
        from components.snapshotter.rollback import Rollback

        return Rollback(self.store, await self._lake.iceberg_tables(), call, self._lake.objects)

    async def why_unavailable(self) -> str | None:
        """Returns why no snapshotter would fulfil a request now; None if one would."""
        entry = await ledger_entry(self.store, COMPONENT)
        lease = await self.store.get_daemon_lease(self.settings.group if entry is None else entry.group)
        if lease is None or lease.expires_at <= self.clock.now_ms():
            return "no daemon runs (start one with `astha run`)"
        if entry is None:
            return f"the daemon has no {COMPONENT} (add it to subscriptions.yaml)"
        if entry.state == "paused":
            return f"the daemon's {COMPONENT} is paused (`astha resume {COMPONENT}`)"
        return None

    async def require_clock(self) -> None:
        """To be called before deleting by age. Raises `Failure` if the clock differs from the database's."""
        guard = ClockGuard(self.clock, self.settings.clock, self.store.time)
        if not await guard.trusted():
            raise Failure(f"{guard.reason}: set the clock, or raise clock.tolerance_s", Exit.UNAVAILABLE)

    async def tables_of(self, name: str | None) -> list[LakeTable]:
        return await self.store.list_tables() if name is None else [await find_table(self.store, name)]

    async def rows(self, table: LakeTable) -> list[TableSnapshot]:
        rows: list[TableSnapshot] = []
        while page := await self.store.list_snapshots(table.id, after=rows[-1].id if rows else 0):
            rows += page
        return rows

    def failed(self, table: LakeTable, problem: str) -> RetentionReport:
        from components.snapshotter.retention import RetentionReport

        return RetentionReport(full_name(table), problem=problem)

    def _component_settings(self) -> SnapshotterSettings:
        from components.snapshotter.settings import SnapshotterSettings

        path = self.settings.subscriptions
        subscription = read_subscriptions(path).get(COMPONENT) if path.exists() else None
        try:
            return SnapshotterSettings.model_validate({} if subscription is None else dict(subscription.settings))
        except ValidationError as error:
            raise ConfigError(f"{path}: component {COMPONENT} has invalid settings: {described(error)}") from error


async def call(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


def run_with_context(settings: Settings, work: Callable[[CliContext], Awaitable[T]]) -> T:
    return run_with_lake(settings, lambda lake: work(CliContext(lake)))
