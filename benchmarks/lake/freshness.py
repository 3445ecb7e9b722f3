"""Time from the registry's commit of an insert to the Iceberg snapshot that every reader of the catalog sees.

The daemon is a process of its own, `astha run` with nothing but the Iceberg updater; writer and reader are this one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
from pydantic import SecretStr
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, percentile
from components.lib.lake.iceberg import open_catalog
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.storage.locations import table_location
from components.lib.storage_manager import StorageManager
from registry.embedded_postgres import EmbeddedPostgres

RATE = 20  # inserts a second
WARM_UP = 20  # inserts that don't count
TABLE = "bench.events"
_POINTER = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = 'bench' AND table_name = 'events'"
_TABLES = "[table_metadata, table_files, table_delete_files, iceberg_commits]"
_SUBSCRIPTIONS = f"components: {{iceberg_updater: {{tables: {_TABLES}}}}}\n"


async def freshness_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedPostgres(settings=SERVER) as server:
        url, store = await new_registry(server, "freshness")
        around = ComponentContext(
            store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(Path(directory) / "warehouse"))
        )
        try:
            async with _daemon(Path(directory), url, around.lake):
                late_ms = await _measure(around, report.pick(400, 100))
        finally:
            await store.close()
    what = f"registry commit to Iceberg snapshot visible, {RATE} inserts/s, PostgreSQL"
    report.add("commit_to_snapshot_p50_ms", percentile(late_ms, 0.5), what)
    report.add("commit_to_snapshot_p99_ms", percentile(late_ms, 0.99), what)


@asynccontextmanager
async def _daemon(directory: Path, url: str, lake: LakeSettings) -> AsyncIterator[None]:
    subscriptions = directory / "subscriptions.yaml"
    subscriptions.write_text(_SUBSCRIPTIONS)
    environment = {
        **os.environ, "ASTHA_REGISTRY": url, "ASTHA_SUBSCRIPTIONS": str(subscriptions),
        "ASTHA_SERVER__PORT": "0", "ASTHA_LOG__LEVEL": "error", "ASTHA_LAKE__WAREHOUSE": lake.warehouse,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "astha.cli", "run", env=environment)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def _measure(around: ComponentContext, inserts: int) -> list[float]:
    """Returns the milliseconds of each measured insert."""
    database, name = TABLE.split(".")
    schema = parse_definition({"columns": {"id": "long!", "value": "double"}}).schema()
    location = table_location(around.lake.warehouse, database, name)
    await around.store.create_table(database, name, location, schema.draft())
    committed: list[int] = []
    async with StorageManager(around) as manager:

        async def insert(number: int) -> None:
            inserted = await manager.insert(TABLE, pa.table({"id": [number], "value": [0.5]}), sync=True)
            committed.append((await inserted.registered)[0].created_at)

        await insert(0)
        await asyncio.to_thread(_watch, around, 1)  # the daemon has started
        watching = asyncio.create_task(asyncio.to_thread(_watch, around, inserts + WARM_UP))
        begun = time.perf_counter()
        for number in range(1, inserts + WARM_UP):
            await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
            await insert(number)
        seen = await watching
    return sorted(seen[number] - committed[number] for number in range(WARM_UP, len(committed)))


def _watch(around: ComponentContext, wanted: int) -> list[float]:
    """Returns when each row was first seen, in milliseconds: one insert is one row, committed in order."""
    seen: list[float] = []
    url = around.registry_url.get_secret_value()
    catalog = open_catalog(url, around.lake)
    with psycopg.connect(url, autocommit=True) as connection:
        known = None
        while len(seen) < wanted:
            pointer = connection.execute(_POINTER).fetchone()
            if pointer == known:
                time.sleep(0.001)
                continue
            now, known = time.time() * 1000, pointer
            seen += [now] * (_rows(catalog) - len(seen))
    catalog.close()
    return seen


def _rows(catalog: Catalog) -> int:
    try:
        current = catalog.load_table(TABLE).current_snapshot()
    except NoSuchTableError:
        return 0
    return 0 if current is None or current.summary is None else int(current.summary["total-records"] or 0)
