"""A compactor that dies at any step costs no row and leaves nothing; the next one goes on where it was."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext
from components.commands.verify.verification import Verification, VerifyOptions
from components.compactor.execution.job_context import JobLimits
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from registry.contract import MetadataStore
from tests.faults.crash_compactors import STEPS, CrashRequest
from tests.integration.components.compactor.harness import Bench
from tests.lake import files_below, iceberg_tables

AT_ONCE = JobLimits(heartbeat_s=0.05, stale_after_s=0.001)
"""A dead one is taken for dead at once."""


async def run_compactors(order: CrashRequest) -> None:
    command = [sys.executable, "-m", "tests.faults.crash_compactors", msgspec.json.encode(order).decode()]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)


async def refresh(updater: IcebergUpdater, store: MetadataStore) -> None:
    async with store.consistent_read() as snapshot:
        await updater.on_refresh(snapshot)


async def test_rows_survive_a_death_at_every_step(url: str, warehouse: Path) -> None:
    store = await open_store(url)
    benches = [Bench(store, warehouse) for _ in STEPS]
    updater = IcebergUpdater(
        UpdaterSettings(), ComponentContext(store, SystemLoopClock(), SecretStr(url), benches[0].lake)
    )
    try:
        for number, bench in enumerate(benches):
            await bench.create(f"t{number}")
            await bench.insert(files=4)
        expected = [await bench.ids() for bench in benches]
        await updater.start()
        await refresh(updater, store)
        await run_compactors(CrashRequest(url, [bench.table.id for bench in benches]))
        assert [await bench.ids() for bench in benches] == expected
        statuses = {row.owner: row.status for row in await store.list_compactions()}
        assert statuses == {
            f"crashing {step}": "done" if step == "finish" else "running" for step in STEPS if step != "claim"
        }
        for bench in benches:
            outcome = await (await bench.job(limits=AT_ONCE)).run()
            assert outcome.status == ("aborted" if bench is benches[STEPS.index("finish")] else "done")
            assert len(await store.list_files(bench.table.id)) == 1
        assert [await bench.ids() for bench in benches] == expected
        assert not await store.list_compactions(statuses=["running"])
        cleaned = await clean_intents(store, Objects(benches[0].lake), 0, "cleaner")
        assert cleaned.deleted
        for bench in benches:
            await bench.require_tidy()
        await refresh(updater, store)
        await require_equal(url, store, benches[0])
        assert not [name for name in files_below(warehouse) if name.endswith(".partial")]
    finally:
        await updater.stop()
        await store.close()


async def require_equal(url: str, store: MetadataStore, bench: Bench) -> None:
    tables = iceberg_tables(url, bench.lake)
    try:
        options = VerifyOptions(files=True, checksums=True, timeout_s=1.0)
        report = await Verification(store, tables, Objects(bench.lake), SystemLoopClock(), options).run()
        assert report.equal, report
    finally:
        tables.close()
