"""Compaction at work: many small files make a query slow; the compactor decides, merges on Spark, swaps, and explains.

Writers go on meanwhile: what they insert is there afterwards, and not a row is missing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import duckdb
import pyarrow as pa
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.lanes.lane import Lane
from astha.subscribers import ComponentContext, LakeSettings, Subscriber
from components import compactor, iceberg_updater
from components.commands.demo.daemon import running, until
from components.commands.demo.lake import load_iceberg, verify
from components.commands.demo.stage import Stage
from components.commands.demo.tables import create_table
from components.compactor.subscriber import Compactor
from components.lib.lake.iceberg import open_catalog
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.migrate import migrate
from registry.models import Compaction, LakeTable

TABLE = "shop.visits"
INSERTS, ROWS = 200, 400
REGIONS = ("eu", "us", "ap")
_QUERIES = 5
_MIB = 1 << 20


@dataclass(frozen=True)
class State:
    files: int
    size_bytes: int
    rows: int
    inserted_meanwhile: int
    query_ms: float


@dataclass(frozen=True)
class JobOutcome:
    before: State
    after: State
    decision: Compaction | None
    equal: bool

    def cells(self) -> dict[str, dict[str, str]]:
        def shown(state: State) -> dict[str, str]:
            return {
                "data files": f"{state.files:,}",
                "size": f"{state.size_bytes / _MIB:.1f} MiB",
                "rows written before, read by DuckDB": f"{state.rows:,}",
                "rows inserted meanwhile": f"{state.inserted_meanwhile:,}",
                "the same query, median": f"{state.query_ms:.0f} ms",
            }

        return {"before": shown(self.before), "after": shown(self.after)}


async def show(url: str, warehouse: Path, stage: Stage) -> JobOutcome:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    await asyncio.to_thread(migrate, url)
    store = await open_store(url)
    try:
        around = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(warehouse)))
        updater: dict[str, Subscriber] = {"iceberg_updater": iceberg_updater.create({}, around)}
        async with running(url, store, updater, stage) as lanes:
            before = await _fill(around, lanes, stage)
        component = compactor.create({}, around)
        both: dict[str, Subscriber] = {
            "iceberg_updater": iceberg_updater.create({}, around),
            "compactor": component,
        }
        async with running(url, store, both, stage) as lanes:
            return await _compact(around, component, lanes, before, stage)
    finally:
        await store.close()


async def _fill(around: ComponentContext, lanes: list[Lane], stage: Stage) -> State:
    await until(lambda: all(lane.state == "live" for lane in lanes))
    await create_table(around, TABLE, {"id": "long!", "region": "string!", "page": "string", "seconds": "double"})
    async with StorageManager(around) as manager:
        with stage.working("small inserts", INSERTS) as advance:
            for number in range(INSERTS):
                await manager.insert(TABLE, _rows(number))
                advance(1)
    position = await around.store.position()
    await until(lambda: lanes[0].state == "live" and lanes[0].position >= position)
    return await _state(around)


async def _compact(
    around: ComponentContext, component: Compactor, lanes: list[Lane], before: State, stage: Stage
) -> JobOutcome:
    table = await _table(around)
    stage.say(f"{TABLE}: {before.files:,} files; now a compactor starts, with Spark")
    async with StorageManager(around) as manager:
        inserted = INSERTS
        while not await _settled(around, table, stage):
            if component.session_problem is not None:
                stage.say(f"compaction is skipped: {component.session_problem}")
                break
            if inserted < INSERTS + 10:
                await manager.insert(TABLE, _rows(inserted))
                inserted += 1
            await asyncio.sleep(0.2)
    position = await around.store.position()
    await until(lambda: lanes[0].state == "live" and lanes[0].position >= position)
    done = await around.store.list_compactions(statuses=["done"])
    for row in sorted(done, key=lambda row: row.ended_at or 0):
        took = ((row.ended_at or 0) - (row.started_at or 0)) / 1000
        stage.say(
            f"{row.partition_path}: {row.rule}: {row.input_files} files become {row.output_files} by {row.strategy}, "
            f"{row.row_count:,} rows, {took:.1f} s"
        )
    return JobOutcome(before, await _state(around), done[0] if done else None, await verify(around))


async def _settled(around: ComponentContext, table: LakeTable, stage: Stage) -> bool:
    """Returns whether every partition was compacted and no compaction waits."""
    rows = await around.store.list_compactions(table_id=table.id)
    done = {row.partition_path for row in rows if row.status == "done"}
    return len(done) == len(REGIONS) and not [row for row in rows if row.status in ("waiting", "running")]


async def _table(around: ComponentContext) -> LakeTable:
    database, name = TABLE.split(".")
    table = await around.store.get_table(database, name)
    assert table is not None  # noqa: S101  (created above)
    return table


async def _state(around: ComponentContext) -> State:
    table = await _table(around)
    rows, inserted, query_ms = await asyncio.to_thread(_query, around)
    return State(table.file_count, table.total_size, rows, inserted, query_ms)


def _query(around: ComponentContext) -> tuple[int, int, float]:
    """Queries with DuckDB, as any reader of the catalog would. Counts rows from before the compactor and rows since."""
    catalog = open_catalog(around.registry_url.get_secret_value(), around.lake)
    location = catalog.load_table(TABLE).metadata_location.removeprefix("file://")
    catalog.close()
    query = (
        "SELECT count(*) FILTER (id < ?), count(*) FILTER (id >= ?), sum(seconds), max(page) FROM iceberg_scan(?) "
        "WHERE region <> 'none'"
    )
    times, rows, inserted = [], 0, 0
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_iceberg(connection)
        for _ in range(_QUERIES):
            began = perf_counter()
            found = connection.execute(query, [INSERTS * ROWS, INSERTS * ROWS, location]).fetchone()
            times.append((perf_counter() - began) * 1000)
            rows, inserted = (int(found[0]), int(found[1])) if found else (0, 0)
    return rows, inserted, median(times)


def _rows(number: int) -> pa.Table:
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": pa.array([REGIONS[row % len(REGIONS)] for row in ids]),
            "page": pa.array([f"/item/{row * 7919 % 1000}" for row in ids]),
            "seconds": pa.array([row % 97 / 10 for row in ids], pa.float64()),
        }
    )
