"""Spark SQL with Iceberg's runtime writes through the catalog while a daemon follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.schema.transform_syntax import show_order
from components.lib.lake.storage.locations import parse
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from registry.models import LakeTable
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.commands.catalog.daemon import iceberg_daemon, require_equal
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.servers.catalog_process import CatalogProcess

pytestmark = pytest.mark.long  # `make rck` runs it

COPY_ON_WRITE = ", ".join(f"'write.{kind}.mode'='copy-on-write'" for kind in ("delete", "update", "merge"))


@pytest.fixture
async def spark(store: MetadataStore, url: str, lake: LakeSettings, tmp_path: Path) -> AsyncIterator[Spark]:
    with CatalogProcess(tmp_path, url, lake.warehouse) as catalog:
        session = Spark(tmp_path, {"type": "rest", "uri": catalog.uri})
        yield session
        await asyncio.to_thread(session.__exit__, None, None, None)


async def test_spark_sql_writes_beside_our_inserts(
    spark: Spark,
    store: MetadataStore,
    context: ComponentContext,
    manager: StorageManager,
    run_daemon: RunDaemon,
) -> None:
    running = await iceberg_daemon(run_daemon, context)

    async def sql(statement: str) -> list[list[object]]:
        return await asyncio.to_thread(spark.sql, statement)

    async def registered() -> LakeTable:
        found = await store.get_table("sales", "orders")
        assert found is not None
        return found

    await sql("CREATE NAMESPACE astha.sales")
    await sql(
        f"CREATE TABLE astha.sales.orders USING iceberg TBLPROPERTIES ({COPY_ON_WRITE}) "
        "AS SELECT id, concat('n', id) AS name FROM range(10)"
    )
    assert (await registered()).row_count == 10
    await sql("INSERT INTO astha.sales.orders VALUES (10, 'n10'), (11, 'n11')")
    await manager.insert("sales.orders", pa.table({"id": [100, 101], "name": ["own", "own"]}))
    await running.until(lambda: is_read(sql, 14), "our rows in Iceberg")
    await sql("DELETE FROM astha.sales.orders WHERE id = 3 OR id = 100")
    await sql(
        "MERGE INTO astha.sales.orders t USING (SELECT 1L AS id, 'merged' AS name UNION SELECT 50L, 'new') s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
    )
    await sql("ALTER TABLE astha.sales.orders ADD COLUMN amount BIGINT")
    await sql("INSERT INTO astha.sales.orders VALUES (60, 'n60', 7)")
    await sql("CALL astha.system.rewrite_data_files(table => 'sales.orders', options => map('min-input-files', '2'))")
    found = await sql("SELECT id, name FROM astha.sales.orders ORDER BY id")
    expected = sorted({*range(12), 101, 50, 60} - {3})
    assert [row[0] for row in found] == expected
    assert (await registered()).row_count == len(expected)
    assert [version.schema_version for version in await store.list_table_metadata((await registered()).id)] == [1, 2]
    await require_equal(context)


async def test_a_sort_order_by_spark_is_adopted(
    spark: Spark, store: MetadataStore, context: ComponentContext, manager: StorageManager, run_daemon: RunDaemon
) -> None:
    """And a partition spec, whether our writers can write it or not: then inserts are refused, with the reason."""
    running = await iceberg_daemon(run_daemon, context)

    async def sql(statement: str) -> list[list[object]]:
        return await asyncio.to_thread(spark.sql, statement)

    await sql("CREATE NAMESPACE astha.sales")
    await sql("CREATE TABLE astha.sales.orders (id BIGINT, name STRING, price DOUBLE) USING iceberg")
    await sql("ALTER TABLE astha.sales.orders WRITE ORDERED BY bucket(1, id), name DESC NULLS FIRST")
    table = await store.get_table("sales", "orders")
    assert table is not None
    version = await store.get_table_metadata(table.id)
    assert version is not None
    schema = TableSchema.of(version)
    assert [show_order(field, schema.iceberg) for field in schema.order.fields] == [
        "bucket(1, id)",
        "name desc nulls first",
    ]
    rows = pa.table({"id": [1, 2, 3, 4], "name": ["a", None, "c", "b"], "price": [0.5, 1.5, 2.5, 3.5]})
    await manager.insert("sales.orders", rows, sync=True)
    (file,) = await store.list_files(table.id)
    assert pq.read_table(parse(file.file_path).path)["name"].to_pylist() == [None, "c", "b", "a"]
    await running.until(lambda: is_read(sql, 4), "our rows in Iceberg")
    await sql("ALTER TABLE astha.sales.orders ADD PARTITION FIELD price")
    with pytest.raises(SchemaProblem, match="a double can't be a partition's value"):
        await manager.insert("sales.orders", rows, sync=True)
    await sql("INSERT INTO astha.sales.orders VALUES (5, 'e', 5.5)")
    assert await is_read(sql, 5)
    await require_equal(context)
    await sql("ALTER TABLE astha.sales.orders DROP PARTITION FIELD price")
    await manager.insert("sales.orders", rows, sync=True)
    await running.until(lambda: is_read(sql, 9), "our rows after the field is dropped")
    await require_equal(context)


async def is_read(sql: object, count: int) -> bool:
    assert callable(sql)
    found = await sql("SELECT count(*) FROM astha.sales.orders")
    return bool(found == [[count]])
