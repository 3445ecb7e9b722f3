"""The lake at work: rows inserted by several writers become files, registry rows, events and Iceberg snapshots.

The Iceberg updater fails in the middle, and catches up by comparing Iceberg with the registry; then everything is
verified, and another engine asked what it sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import structlog
from pydantic import SecretStr
from pyiceberg.exceptions import NoSuchTableError

from astha.clock import SystemLoopClock
from astha.events import Event
from astha.lanes.lane import Lane
from astha.subscribers import ComponentContext, LakeSettings, Subscriber
from components import iceberg_updater, metadata_orchestrator
from components.commands.demo.daemon import running, until
from components.commands.demo.stage import Stage
from components.commands.demo.tables import create_table
from components.commands.verify.verification import Verification, VerifyOptions
from components.lib.lake.iceberg import IcebergTables, open_catalog
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import find_table
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import ConsistentRead
from registry.migrate import migrate
from registry.models import Row

TABLE = "shop.orders"
WRITERS, BATCHES, ROWS = 4, 25, 4_000
_WATCH_S = 1.0
REGIONS = ("eu", "us", "ap")


@dataclass(frozen=True)
class LakeOutcome:
    inserted: int
    files: int
    snapshots: int
    refreshes: int
    registry_rows: int
    iceberg_rows: int
    duckdb_rows: int
    equal: bool

    def cells(self) -> dict[str, str]:
        return {
            "rows inserted": f"{self.inserted:,}",
            "data files": f"{self.files:,}",
            "Iceberg snapshots": f"{self.snapshots:,}",
            "refreshes of the updater": f"{self.refreshes}",
            "rows by the registry's statistics": f"{self.registry_rows:,}",
            "rows by Iceberg's metadata": f"{self.iceberg_rows:,}",
            "rows that DuckDB reads": f"{self.duckdb_rows:,}",
            "registry, Iceberg and storage agree": "yes" if self.equal else "NO",
        }


class Fragile:
    """A component that fails on request."""

    def __init__(self, inner: iceberg_updater.IcebergUpdater) -> None:
        self._inner = inner
        self.failing = False

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._inner.subscribed_tables

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transactions([[event]])

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self._fail()
        await self._inner.on_transactions(transactions)

    async def on_health(self) -> bool:
        return not self.failing and await self._inner.on_health()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self._fail()
        await self._inner.on_refresh(snapshot)

    def _fail(self) -> None:
        if self.failing:
            raise ConnectionError("the catalog is unavailable (simulated)")


async def show(url: str, warehouse: Path, stage: Stage) -> LakeOutcome:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    await asyncio.to_thread(migrate, url)
    clock = SystemLoopClock()
    store = await open_store(url)
    try:
        around = ComponentContext(store, clock, SecretStr(url), LakeSettings(warehouse=str(warehouse)))
        updater = Fragile(iceberg_updater.create({}, around))
        components: dict[str, Subscriber] = {
            "iceberg_updater": updater,
            "metadata_orchestrator": metadata_orchestrator.create({}, around),
        }
        async with running(url, store, components, stage) as lanes:
            inserted = await _act(around, updater, lanes, stage)
            return await _outcome(around, inserted, lanes[0])
    finally:
        await store.close()


async def _act(around: ComponentContext, updater: Fragile, lanes: list[Lane], stage: Stage) -> int:
    store, lane = around.store, lanes[0]
    await until(lambda: all(lane.state == "live" for lane in lanes))
    columns = {"id": "long!", "region": "string!", "price": "decimal(9,2)", "at": "timestamptz"}
    location = await create_table(around, TABLE, columns)
    stage.say(f"{TABLE}: partitioned by region, sorted by id, at {location}")
    watching = asyncio.create_task(_watch(around, stage))
    async with StorageManager(around) as manager:
        with stage.working(f"rows of {WRITERS} writers", WRITERS * BATCHES * ROWS) as advance:

            async def write(writer: int) -> None:
                for batch in range(BATCHES):
                    await manager.insert(TABLE, _rows(writer * BATCHES + batch))
                    advance(ROWS)
                    if writer == 0 and batch in (BATCHES // 3, 2 * BATCHES // 3):
                        updater.failing = batch < BATCHES // 2
                        stage.say("the catalog fails" if updater.failing else "the catalog works again")

            await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    table = await find_table(store, TABLE)
    stage.say(f"all rows are registered: {table.row_count:,} in {table.file_count:,} files; the updater catches up")
    position = await store.position()
    await until(lambda: lane.state == "live" and lane.position >= position)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return WRITERS * BATCHES * ROWS


async def _watch(around: ComponentContext, stage: Stage) -> None:
    """Prints what readers of the Iceberg table see meanwhile."""
    shown = 0
    while True:
        await asyncio.sleep(_WATCH_S)
        snapshots, rows, _ = await asyncio.to_thread(_seen, around)
        if rows > shown:
            shown = rows
            stage.say(f"Iceberg: {snapshots} snapshots, {rows:,} rows")


def _seen(around: ComponentContext) -> tuple[int, int, str]:
    """Returns snapshots, rows and the current metadata file, as a reader of the catalog finds them."""
    catalog = open_catalog(around.registry_url.get_secret_value(), around.lake)
    try:
        table = catalog.load_table(TABLE)
    except NoSuchTableError:
        return 0, 0, ""
    finally:
        catalog.close()
    current = table.current_snapshot()
    summary = current.summary if current is not None else None
    rows = int(summary["total-records"] or 0) if summary is not None else 0
    return len(table.snapshots()), rows, table.metadata_location


def _rows(number: int) -> pa.Table:
    first = number * ROWS
    return pa.table(
        {
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "region": pa.array([REGIONS[row % len(REGIONS)] for row in range(ROWS)]),
            "price": pa.array([f"{row % 1_000}.50" for row in range(ROWS)]).cast(pa.decimal128(9, 2)),
            "at": pa.array([1_700_000_000_000_000 + row for row in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )


async def _outcome(around: ComponentContext, inserted: int, lane: Lane) -> LakeOutcome:
    database, name = TABLE.split(".")
    table = await around.store.get_table(database, name)
    assert table is not None  # noqa: S101  (created above)
    snapshots, rows, metadata = await asyncio.to_thread(_seen, around)
    read = await asyncio.to_thread(count_with_duckdb, metadata)
    equal = await verify(around)
    return LakeOutcome(
        inserted, table.file_count, snapshots, lane.counts.refreshes, table.row_count, rows, read, equal
    )  # fmt: skip


async def verify(around: ComponentContext) -> bool:
    """Does what `astha verify --files --checksums` does."""
    catalog = await asyncio.to_thread(open_catalog, around.registry_url.get_secret_value(), around.lake)
    tables = IcebergTables(catalog, await registry_identity(around.store))
    try:
        options = VerifyOptions(files=True, checksums=True)
        report = await Verification(around.store, tables, Objects(around.lake), around.clock, options).run()
    finally:
        await asyncio.to_thread(tables.close)
    return report.equal


def count_with_duckdb(metadata_location: str) -> int:
    """Counts with DuckDB's Iceberg reader, from the table's metadata file."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_iceberg(connection)
        path = metadata_location.removeprefix("file://")
        found = connection.execute("SELECT count(*) FROM iceberg_scan(?)", [path]).fetchone()
    return int(found[0]) if found else 0


def load_iceberg(connection: duckdb.DuckDBPyConnection, *more: str) -> None:
    """Loads the extension and what it needs from their packages: DuckDB itself would download them."""
    for extension in (*more, "avro", "iceberg"):
        connection.execute(f"LOAD '{_extension(extension)}'")


def _extension(name: str) -> Path:
    module = __import__(f"duckdb_extension_{name}")
    return next(Path(str(module.__file__)).parent.rglob(f"{name}.duckdb_extension"))
