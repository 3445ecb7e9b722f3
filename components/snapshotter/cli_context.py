"""What the commands work with: the registry, the Iceberg catalog and the storage, opened for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from astha.cli.exit_codes import Exit, Failure
from astha.clock import LoopClock, SystemLoopClock
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings
from astha.validation_errors import described
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.lib.lake.iceberg import IcebergTables
    from components.snapshotter.expiration import Lifecycle, Report
    from components.snapshotter.rollback import Rollback
    from components.snapshotter.settings import SnapshotterSettings

T = TypeVar("T")

COMPONENT = "snapshotter"


class Desk:
    def __init__(self, settings: Settings, store: MetadataStore, clock: LoopClock) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self._tables: IcebergTables | None = None

    async def lifecycle(self) -> Lifecycle:
        """With the defaults that the daemon has."""
        from components.lib.lake.storage.objects import Objects
        from components.snapshotter.expiration import Lifecycle

        chosen = self._component_settings()
        return Lifecycle(
            self.store,
            await self._opened_tables(),
            call,
            Objects(self.settings.lake),
            self.clock,
            defaults=chosen.policy,
            updater=chosen.updater,
        )

    async def rollback(self) -> Rollback:
        from components.lib.lake.storage.objects import Objects
        from components.snapshotter.rollback import Rollback

        return Rollback(self.store, await self._opened_tables(), call, Objects(self.settings.lake))

    async def nobody(self) -> str | None:
        """Why a request would wait for ever; None if somebody is there to meet it."""
        lease = await self.store.get_daemon_lease(self.settings.lease.name)
        if lease is None or lease.expires_at <= self.clock.now_ms():
            return "no daemon runs (start one with `astha run`)"
        entry = next((found for found in await self.store.read_ledger() if found.component == COMPONENT), None)
        if entry is None:
            return f"the daemon has no {COMPONENT} (add it to subscriptions.yaml)"
        if entry.state == "paused":
            return f"the daemon's {COMPONENT} is paused (`astha resume {COMPONENT}`)"
        return None

    async def require_clock(self) -> None:
        """Before anything is deleted by age: Failure if the database's clock says another time."""
        guard = ClockGuard(self.clock, self.settings.clock, self.store.time)
        if not await guard.trusted():
            raise Failure(f"{guard.reason}: set the clock, or raise clock.tolerance_s", Exit.UNAVAILABLE)

    async def tables_of(self, name: str | None) -> list[LakeTable]:
        return await self.store.list_tables() if name is None else [await table_of(self.store, name)]

    async def rows(self, table: LakeTable) -> list[TableSnapshot]:
        rows: list[TableSnapshot] = []
        while page := await self.store.list_snapshots(table.id, after=rows[-1].id if rows else 0):
            rows += page
        return rows

    def trouble(self, table: LakeTable, problem: str) -> Report:
        from components.snapshotter.expiration import Report

        return Report(f"{table.database}.{table.name}", problem=problem)

    def close(self) -> None:
        if self._tables is not None:
            self._tables.close()

    async def _opened_tables(self) -> IcebergTables:
        from components.lib.lake.iceberg import IcebergTables, open_catalog
        from components.lib.lake.iceberg.registry_identity import registry_identity

        if self._tables is None:
            identity = await registry_identity(self.store)
            url = self.settings.registry.url.get_secret_value()
            self._tables = IcebergTables(await asyncio.to_thread(open_catalog, url, self.settings.lake), identity)
        return self._tables

    def _component_settings(self) -> SnapshotterSettings:
        from components.snapshotter.settings import SnapshotterSettings

        path = self.settings.subscriptions
        subscription = read_subscriptions(path).get(COMPONENT) if path.exists() else None
        try:
            return SnapshotterSettings.model_validate({} if subscription is None else dict(subscription.settings))
        except ValidationError as error:
            raise ConfigError(f"{path}: component {COMPONENT} refuses its settings: {described(error)}") from error


async def call(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def table_of(store: MetadataStore, name: str) -> LakeTable:
    database, _, short = name.rpartition(".")
    table = await store.get_table(database or "default", short)
    if table is None:
        raise NotFound(f"the registry has no table {name}")
    return table


def run_at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]]) -> T:
    """With everything closed afterwards; what does not answer is `Exit.UNAVAILABLE`."""

    async def run() -> T:
        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        desk = Desk(settings, store, clock)
        try:
            return await work(desk)
        except Exception as error:
            raise _translated(error, settings) from error
        finally:
            desk.close()
            await store.close()

    return asyncio.run(run())


def _translated(error: Exception, settings: Settings) -> Exception:
    from components.lib.lake.iceberg import CatalogUnavailable
    from components.lib.lake.storage.objects import StorageUnavailable

    if isinstance(error, CatalogUnavailable | StorageUnavailable):
        return Failure(settings.concealment()(str(error)), Exit.UNAVAILABLE)
    return error
