"""Inserts against the bare Parquet writer, and against themselves without metadata."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretStr
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.registries import new_registry
from benchmarks.report import Report, interleaved, rates
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import canonical
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.forwarding import ForwardingStore
from registry.inputs import Registration
from registry.migrate import migrate
from registry.models import TableFile

SCHEMA = TableSchema(
    version=1,
    iceberg=Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "customer", StringType()),
        NestedField(3, "amount", DoubleType()),
        NestedField(4, "at", TimestamptzType()),
        NestedField(5, "quantity", IntegerType()),
    ),
    partition=UNPARTITIONED_PARTITION_SPEC,
    order=UNSORTED_SORT_ORDER,
)
LEVEL = 3  # the table's default, so that both compress alike


def orders(count: int, seed: int = 1) -> pa.Table:
    chance = random.Random(seed)
    start = datetime(2024, 5, 1, tzinfo=UTC)
    columns = [
        list(range(count)),
        [f"customer-{chance.randrange(5_000)}" for _ in range(count)],
        [chance.random() * 1_000 for _ in range(count)],
        [start + timedelta(milliseconds=chance.randrange(10**9)) for _ in range(count)],
        [chance.randrange(100) for _ in range(count)],
    ]
    types = SCHEMA.arrow().types
    return pa.table([pa.array(values, kind) for values, kind in zip(columns, types, strict=True)], SCHEMA.arrow())


async def insert_rate(report: Report, directory: Path) -> None:
    """Inserts large batches of one file each, and compares with the Parquet writer alone."""
    rows = report.pick(2_000_000, 500_000)
    data = orders(rows)
    async with AsyncExitStack() as stack:
        manager, table = await _manager(stack, directory / "rate", await _sqlite(stack, directory / "rate.db"))

        async def insert(_: int) -> None:
            await manager.insert(table, data, sync=True)

        async def bare(number: int) -> None:
            path = directory / f"bare-{number}.parquet"
            await asyncio.to_thread(pq.write_table, data, path, compression="zstd", compression_level=LEVEL)

        seconds = await interleaved(report.pick(9, 4), insert=insert, bare=bare)
    report.add(
        "insert_rows_per_s_vs_pyarrow",
        median(seconds["bare"]) / median(seconds["insert"]),
        f"rows/s of inserts of {rows:,} rows in one file ({rates(rows, seconds['insert']):,.0f}/s; checked, hashed, "
        f"with statistics, synced to disk and registered in SQLite) over pyarrow.parquet.write_table of the same "
        f"table with the same compression ({rates(rows, seconds['bare']):,.0f}/s; none of these)",
        at_least=0.7,
    )


class NoMetadata(ForwardingStore):
    """Reads schemas and writes nothing."""

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        pass

    async def complete_intents(self, paths: Sequence[str]) -> None:
        pass

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        return [[] for _ in registrations]


async def insert_overhead(report: Report, directory: Path, server: EmbeddedPostgres) -> None:
    batches = report.pick(1_000, 200)
    given = [orders(1_000, seed) for seed in range(20)]
    found: dict[str, tuple[float, float]] = {}
    for name in ("sqlite", "postgres"):
        async with AsyncExitStack() as stack:
            if name == "sqlite":
                store = await _sqlite(stack, directory / "overhead.db")
            else:
                _, store = await new_registry(server, "overhead")
                stack.push_async_callback(store.close)
            with_metadata, table = await _manager(stack, directory / name, store)
            without, _ = await _manager(stack, directory / name, NoMetadata(store), table)

            insert = partial(_insert_all, table, [given[number % len(given)] for number in range(batches)])
            on, off = partial(insert, with_metadata), partial(insert, without)
            seconds = await interleaved(report.pick(20, 4), on=on, off=off)
            pairs = zip(seconds["on"], seconds["off"], strict=True)
            found[name] = (median(on / off for on, off in pairs), median(seconds["on"]))  # pairs, as the disk is moody
    each = ", ".join(f"{name} {ratio:.3f} ({on / batches * 1e3:.2f} ms each)" for name, (ratio, on) in found.items())
    report.add(
        "insert_overhead",
        max(ratio for ratio, _ in found.values()),
        f"{batches:,} inserts of 1,000 rows one after the other, asynchronous metadata with its intents and the flush "
        f"at the end, over the same with metadata off; the worse of {each}",
        at_most=1.05,
    )


async def _insert_all(table: int, batches: list[pa.Table], manager: StorageManager, _: int) -> None:
    for batch in batches:
        await manager.insert(table, batch)
    await manager.flush()


async def _sqlite(stack: AsyncExitStack, path: Path) -> MetadataStore:
    await asyncio.to_thread(migrate, f"sqlite:///{path}")
    store = await open_store(f"sqlite:///{path}")
    stack.push_async_callback(store.close)
    return store


async def _manager(
    stack: AsyncExitStack, warehouse: Path, store: MetadataStore, table: int | None = None
) -> tuple[StorageManager, int]:
    around = ComponentContext(
        store=store, clock=SystemLoopClock(), registry_url=SecretStr(""), lake=LakeSettings(warehouse=str(warehouse))
    )
    manager = await stack.enter_async_context(StorageManager(around))
    if table is None:
        row = await store.create_table("bench", "orders", canonical(warehouse / "orders"), SCHEMA.draft())
        table = row.id
    return manager, table
