"""Engines write and read through the catalog while the daemon compacts their table: every read has every row once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from tests.fixtures.daemons import RunDaemon, Running
from tests.integration.components.commands.catalog.conftest import Serve
from tests.integration.components.commands.catalog.daemon import compacting_daemon, require_equal
from tests.integration.components.commands.catalog.duckdb_client import attach
from tests.integration.components.commands.catalog.test_writers import registered
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.servers.catalog_process import CatalogProcess
from tests.waiting import eventually

COMPACTIONS = 5
"""How many are done before the engine writes for the last time."""

APPENDS, EACH = 20, 3
DEADLINE_S = 180.0
OWN = 1_000_000
"""Ids from here on are rows of our own inserts."""

Refusals: TypeAlias = tuple[type[Exception], ...]


class Engine(Protocol):
    """`delete` raises one of `refusals` if the daemon has replaced the file meanwhile."""

    refusals: Refusals

    def create(self) -> None: ...
    def append(self, ids: Sequence[int]) -> None: ...
    def delete(self, number: int) -> None: ...
    def ids(self) -> list[int]: ...


class PyIceberg:
    refusals: Refusals = (CommitFailedException, ValidationException)

    def __init__(self, url: str) -> None:
        self._catalog = load_catalog("lake", type="rest", uri=url)

    def create(self) -> None:
        self._catalog.create_namespace("sales")
        self._catalog.create_table("sales.orders", _rows([]).schema)

    def append(self, ids: Sequence[int]) -> None:
        self._catalog.load_table("sales.orders").append(_rows(ids))

    def delete(self, number: int) -> None:
        self._catalog.load_table("sales.orders").delete(f"id = {number}")

    def ids(self) -> list[int]:
        found: list[int] = self._catalog.load_table("sales.orders").scan().to_arrow()["id"].to_pylist()
        return sorted(found)


class DuckDB:
    """Its deletes are position delete files, which compactions apply."""

    refusals: Refusals = (duckdb.TransactionException,)

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def create(self) -> None:
        self._connection.execute("CREATE SCHEMA lake.sales")
        self._connection.execute("CREATE TABLE lake.sales.orders (id BIGINT, name VARCHAR)")

    def append(self, ids: Sequence[int]) -> None:
        self._connection.execute(f"INSERT INTO lake.sales.orders VALUES {_values(ids)}")

    def delete(self, number: int) -> None:
        self._connection.execute(f"DELETE FROM lake.sales.orders WHERE id = {number}")

    def ids(self) -> list[int]:
        return [row[0] for row in self._connection.execute("SELECT id FROM lake.sales.orders ORDER BY id").fetchall()]


class SparkSql:
    refusals: Refusals = (AssertionError,)

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def create(self) -> None:
        self._spark.sql("CREATE NAMESPACE astha.sales")
        self._spark.sql("CREATE TABLE astha.sales.orders (id BIGINT, name STRING) USING iceberg")

    def append(self, ids: Sequence[int]) -> None:
        self._spark.sql(f"INSERT INTO astha.sales.orders VALUES {_values(ids)}")

    def delete(self, number: int) -> None:
        """By a MERGE, which is the statement with the most reads before its commit."""
        self._spark.sql(
            f"MERGE INTO astha.sales.orders AS t USING (SELECT {number}L AS id) AS s ON t.id = s.id "
            "WHEN MATCHED THEN DELETE"
        )

    def ids(self) -> list[int]:
        return [row[0] for row in self._spark.sql("SELECT id FROM astha.sales.orders ORDER BY id")]


class Site:
    """A daemon with updater and compactor, and our own inserts."""

    def __init__(
        self, store: MetadataStore, context: ComponentContext, manager: StorageManager, running: Running
    ) -> None:
        self.store, self.context, self._manager, self._running = store, context, manager, running

    async def compactions(self) -> int:
        return len(await self.store.list_compactions(statuses=["done"], limit=1_000))

    async def require_right_counts(self, engine: Engine) -> None:
        """Each read is between two commits of the only writer, so it must have exactly the rows of the first."""
        await asyncio.to_thread(engine.create)
        rows: set[int] = set()
        number = 0
        async with asyncio.timeout(DEADLINE_S):
            while number < APPENDS or await self.compactions() < COMPACTIONS:
                added = range(number * EACH, (number + 1) * EACH)
                await asyncio.to_thread(_until_committed, partial(engine.append, added), engine.refusals)
                rows.update(added)
                if number % 4 == 3:
                    removed = added[0] - EACH
                    await asyncio.to_thread(_until_committed, partial(engine.delete, removed), engine.refusals)
                    rows.remove(removed)
                assert await asyncio.to_thread(engine.ids) == sorted(rows)
                number += 1
        await self._manager.insert("sales.orders", _rows([OWN]), sync=True)
        rows.add(OWN)
        await asyncio.to_thread(_until_committed, partial(engine.append, [OWN + 1]), engine.refusals)
        rows.add(OWN + 1)

        async def all_are_read() -> bool:
            return await asyncio.to_thread(engine.ids) == sorted(rows)

        await self._running.until(all_are_read, "our own row in Iceberg", DEADLINE_S)
        await self._require_rest(len(rows), number)

    async def _require_rest(self, rows: int, appends: int) -> None:
        async def at_rest() -> bool:
            return not await self.store.list_compactions(statuses=["waiting", "running"])

        await eventually(at_rest, "no compaction is left", DEADLINE_S)
        await require_equal(self.context)
        table = await registered(self.store)
        deleted = sum(file.row_count for file in await self.store.list_delete_files(table.id))
        assert table.row_count - deleted == rows
        assert table.file_count < appends, "nothing was compacted"
        assert not await self.store.list_compactions(statuses=["failed"])


@pytest.fixture
async def site(
    store: MetadataStore, context: ComponentContext, manager: StorageManager, run_daemon: RunDaemon
) -> AsyncIterator[Site]:
    async with compacting_daemon(run_daemon, context) as running:
        yield Site(store, context, manager, running)


@pytest.mark.slow
async def test_pyiceberg(serve: Serve, site: Site) -> None:
    async with serve() as url:
        await site.require_right_counts(await asyncio.to_thread(PyIceberg, url))


@pytest.mark.slow
async def test_duckdb(serve: Serve, site: Site) -> None:
    async with serve() as url:
        connection = await asyncio.to_thread(attach, url)
        try:
            await site.require_right_counts(DuckDB(connection))
        finally:
            connection.close()


@pytest.mark.long  # `make rck` runs it
async def test_spark(site: Site, url: str, lake: LakeSettings, tmp_path: Path) -> None:
    catalog = CatalogProcess(tmp_path, url, lake.warehouse)
    try:
        await asyncio.to_thread(catalog.start)  # it writes to the registry, which the site's daemon may have locked
        spark = await asyncio.to_thread(Spark, tmp_path, {"type": "rest", "uri": catalog.uri})
        try:
            await site.require_right_counts(SparkSql(spark))
        finally:
            await asyncio.to_thread(spark.__exit__, None, None, None)
    finally:
        await asyncio.to_thread(catalog.stop)


def _until_committed(work: Callable[[], Any], refusals: Refusals) -> None:
    """Engines repeat appends by themselves, and not all other commits: a user would run the statement again."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            work()
            return
        except refusals:
            if time.monotonic() > deadline:
                raise


def _rows(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{number}" for number in ids], pa.string())})


def _values(ids: Sequence[int]) -> str:
    return ", ".join(f"({number}, 'n{number}')" for number in ids)
