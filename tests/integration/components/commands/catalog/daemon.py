"""A daemon beside the catalog, with the Iceberg updater and, if wanted, the compactor; `astha verify` of what all of
them have written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext
from components.commands.verify.verification import Verification, VerifyOptions
from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.iceberg import IcebergTables, open_catalog
from components.lib.lake.iceberg.registry_identity import recorded_identity
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from tests.doubles.merging import LocalExecutor
from tests.fixtures.daemons import RunDaemon, Running

QUICK = UpdaterSettings(retry_initial_s=0.05, retry_max_s=0.5)


@asynccontextmanager
async def compacting_daemon(run_daemon: RunDaemon, context: ComponentContext) -> AsyncIterator[Running]:
    """Compacts three small files at once, in a thread of the test's process."""
    url = context.registry_url.get_secret_value()
    settings = CompactorSettings(heartbeat_s=0.5, check_every_s=0.2, defaults={"compaction.min-inputs": 3})
    store = await open_store(url)  # with the real clock: decisions wait for it
    try:
        around = msgspec.structs.replace(context, store=store)
        compactor = Compactor(settings, around, lambda: LocalExecutor(merge))
        running = await run_daemon(url, {"iceberg_updater": IcebergUpdater(QUICK, around), "compactor": compactor})
        await running.live()
        yield running
        await running.stop()
    finally:
        await store.close()


async def iceberg_daemon(run_daemon: RunDaemon, context: ComponentContext) -> Running:
    updater = IcebergUpdater(QUICK, context)
    running = await run_daemon(context.registry_url.get_secret_value(), {"iceberg_updater": updater})
    await running.live()
    return running


async def require_equal(context: ComponentContext) -> None:
    """Waits for the updater, and requires that registry, Iceberg and storage are equal."""
    url, lake = context.registry_url.get_secret_value(), context.lake
    store = await open_store(url)  # with the real clock: it waits
    iceberg = IcebergTables(open_catalog(url, lake), await recorded_identity(store))
    try:
        options = VerifyOptions(timeout_s=60.0, files=True)
        report = await Verification(store, iceberg, Objects(lake), SystemLoopClock(), options).run()
        assert report.equal, report
        assert len(report.tables) > 0
    finally:
        iceberg.close()
        await store.close()
