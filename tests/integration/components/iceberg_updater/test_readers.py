"""DuckDB, and Spark with Iceberg's own runtime, read the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from sqlalchemy import make_url

from components.iceberg_updater.external_commits import adopt, revert
from components.lib.lake.iceberg import TableProblem
from registry.models import LakeTable
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.parquet_files import BY_DAY

DAY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def backend() -> str:
    return "sqlite"


def duckdb_ids(lake: Lake, table: LakeTable, where: str = "true") -> list[int]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for name in ("avro", "iceberg"):
            module = __import__(f"duckdb_extension_{name}")
            extension = next(Path(str(module.__file__)).parent.rglob(f"{name}.duckdb_extension"))
            connection.execute(f"LOAD '{extension}'")
        path = lake.load(table).metadata_location.removeprefix("file://")
        query = f"SELECT id FROM iceberg_scan(?) WHERE {where} ORDER BY id"
        return [found for (found,) in connection.execute(query, [path]).fetchall()]


async def test_duckdb(lake: Lake) -> None:
    plain, daily = await lake.create("plain"), await lake.create("daily", BY_DAY)
    small = [file for number in range(12) for file in await lake.insert(plain, number, name=f"n{number}")]
    await lake.deliver()
    for day in range(12):
        await lake.insert(daily, day, schema=BY_DAY, at=DAY + timedelta(days=day))
        await lake.deliver()
    assert duckdb_ids(lake, plain) == list(range(12))
    assert duckdb_ids(lake, plain, "name = 'n3'") == [3]
    assert duckdb_ids(lake, daily, "\"at\" >= TIMESTAMPTZ '2024-05-10 00:00:00+00'") == [9, 10, 11]
    await lake.compact(plain, small[2:], *range(2, 12))
    await lake.remove(plain, small[:1])
    await lake.deliver()
    assert duckdb_ids(lake, plain) == list(range(1, 12))


@pytest.fixture
def spark(lake: Lake, tmp_path: Path) -> Iterator[Spark]:
    database = make_url(lake.url).database
    lake.warehouse.mkdir(exist_ok=True)
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{database}", "jdbc.schema-version": "V1"}
    with Spark(tmp_path, {**catalog, "warehouse": str(lake.warehouse)}) as started:
        yield started


@pytest.mark.slow
async def test_spark_reads_streams_and_writes(lake: Lake, spark: Spark) -> None:
    """A swap does not disturb a stream; Spark's own commits are detected and adopted or reverted."""
    table = await lake.create()
    small = [file for number in range(3) for file in await lake.insert(table, number)]
    await lake.deliver()
    assert await asyncio.to_thread(spark.stream, "astha.shop.orders") == [0, 1, 2]
    await lake.compact(table, small, 0, 1, 2)
    await lake.insert(table, 3)
    await lake.deliver()
    assert lake.operations(table)[-2:] == ["replace", "append"]
    assert await asyncio.to_thread(spark.stream, "astha.shop.orders") == [3]
    query = "SELECT id FROM astha.shop.orders WHERE id >= 2 ORDER BY id"
    assert await asyncio.to_thread(spark.sql, query) == [[2], [3]]

    await asyncio.to_thread(spark.sql, "INSERT INTO astha.shop.orders VALUES (4, 'spark', NULL)")
    await lake.insert(table, 5)
    await lake.deliver()
    assert lake.ids(table) == [0, 1, 2, 3, 4]
    assert (await adopt(lake.store, lake.tables, table)).added == 1
    await lake.refresh()
    assert lake.ids(table) == [0, 1, 2, 3, 4, 5]
    await lake.require_agreement(table)

    alter = "ALTER TABLE astha.shop.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
    await asyncio.to_thread(spark.sql, alter)
    await asyncio.to_thread(spark.sql, "DELETE FROM astha.shop.orders WHERE id = 1")
    await lake.refresh()
    assert "delete files" in (lake.stopped(table) or "")
    with pytest.raises(TableProblem, match="delete files"):
        await adopt(lake.store, lake.tables, table)
    await revert(lake.store, lake.tables, table)
    await lake.refresh()
    assert await asyncio.to_thread(spark.sql, "SELECT count(*) FROM astha.shop.orders") == [[6]]
    await lake.require_agreement(table)

    await asyncio.to_thread(spark.sql, "CALL astha.system.rewrite_data_files(table => 'shop.orders', "
                                       "options => map('rewrite-all', 'true'))")  # fmt: skip
    assert (await adopt(lake.store, lake.tables, table)).removed == 4
    await lake.refresh()
    assert lake.ids(table) == [0, 1, 2, 3, 4, 5]
    await lake.require_agreement(table)
