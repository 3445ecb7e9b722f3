"""Inserts from a real Spark: jobs that succeed, fail, and lose a task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.transforms import BucketTransform
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from astha.subscribers.context import LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager.spark import register
from registry.contract import MetadataStore
from tests.contracts.contents import assert_counted
from tests.lake import EVERYTHING, create_table, files_below, read_rows, table_schema
from tests.spark_sessions import local_session

pytestmark = pytest.mark.slow

PARTITIONED = table_schema(partition=[(1, BucketTransform(3), "id_bucket")])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    master = "local[2,3]"  # two cores, three attempts a task
    options = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "Europe/Berlin"}
    with local_session(master, options) as session:
        register(session)
        yield session
    end_gateway()


def end_gateway() -> None:
    """Ends the JVM, which PySpark keeps for the next session: another test of this process may need its own."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which its JVM ends
    gateway.proc.wait(60)


def save(frame: DataFrame, url: str, table: str = "shop.orders", **options: str) -> None:
    """Runs in the test's thread, to which the session belongs."""
    frame.write.format("astha").option("table", table).option("registry", url).options(**options).mode("append").save()


def orders(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "id", "concat('n', id) AS name", "date_add(DATE'2024-05-01', CAST(id % 3 AS INT)) AS day"
    )


async def clean(store: MetadataStore, lake: LakeSettings) -> None:
    await clean_intents(store, Objects(lake), 0, "cleaner")
    assert await store.list_stale_intents(0) == []


async def test_tasks_write_and_the_driver_registers(
    spark: SparkSession, url: str, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse, schema=PARTITIONED)
    save(orders(spark, 1_000), url)
    files = await store.list_files(table.id)
    assert len(files) == 12  # three partitions of each of four tasks
    assert len({file.created_at for file in files}) == 1
    rows = await read_rows(store, table)
    assert sorted(row["id"] for row in rows) == list(range(1_000))
    assert rows[0]["day"] == date(2024, 5, 1 + rows[0]["id"] % 3)
    assert files_below(warehouse) == {file.file_path for file in files}
    assert await store.list_stale_intents(0) == []
    await assert_counted(store, table.id)


async def test_every_type_that_spark_has(spark: SparkSession, url: str, store: MetadataStore, warehouse: Path) -> None:
    table = await create_table(store, warehouse, schema=table_schema(EVERYTHING))
    frame = spark.sql(
        """SELECT 1L AS id, true AS flag, CAST(-3 AS SMALLINT) AS small, CAST(1.5 AS FLOAT) AS single,
        CAST(2.5 AS FLOAT) AS double, CAST(1.23 AS DECIMAL(9,2)) AS price, CAST(-4.5 AS DECIMAL(18,4)) AS amount,
        CAST(7 AS DECIMAL(38,5)) AS huge, DATE'2024-05-01' AS day, TIMESTAMP_NTZ'2024-05-01 12:00:00' AS local,
        TIMESTAMP'2024-05-01 14:00:00 Europe/Berlin' AS at, 'text' AS name, X'FF' AS raw,
        CAST('abcd' AS BINARY) AS code, '00000000-0000-0000-0000-000000000005' AS key, array(1.0D, NULL) AS scores,
        named_struct('x', 1.5D, 'label', 'q') AS place, map('k', 1L) AS tags"""
    )
    save(frame, url, fill_missing="true")  # Spark has no time of day
    (row,) = await read_rows(store, table)
    assert (row["key"], row["at"].isoformat()) == (UUID(int=5), "2024-05-01T12:00:00+00:00")
    assert (row["scores"], row["place"], row["tags"]) == ([1.0, None], {"x": 1.5, "label": "q"}, [("k", 1)])
    assert (row["clock"], row["code"], str(row["price"])) == (None, b"abcd", "1.23")


async def test_refused_rows_fail_the_job_and_leave_nothing(
    spark: SparkSession, url: str, store: MetadataStore, warehouse: Path, lake: LakeSettings
) -> None:
    table = await create_table(store, warehouse, schema=PARTITIONED)
    frame = orders(spark, 1_000).selectExpr("CASE WHEN id = 900 THEN NULL ELSE id END AS id", "name", "day")
    with pytest.raises(Exception, match=r"column 'id': is null, and the table requires a value"):
        save(frame, url)
    assert await store.list_files(table.id) == []
    await clean(store, lake)
    assert files_below(warehouse) == set()


async def test_a_failed_task_fails_the_job_and_leaves_nothing(
    spark: SparkSession, url: str, store: MetadataStore, warehouse: Path, lake: LakeSettings
) -> None:
    table = await create_table(store, warehouse, schema=PARTITIONED)

    def fail(number: int) -> int:
        if number == 900:
            raise ZeroDivisionError("a task that fails")
        return number

    frame = orders(spark, 1_000).withColumn("id", udf(fail, "long", useArrow=False)("id"))
    with pytest.raises(Exception, match="a task that fails"):
        save(frame, url)
    assert await store.list_files(table.id) == []
    await clean(store, lake)
    assert files_below(warehouse) == set()


async def test_a_retried_task_inserts_its_rows_once(
    spark: SparkSession, url: str, store: MetadataStore, warehouse: Path, lake: LakeSettings
) -> None:
    table = await create_table(store, warehouse, schema=PARTITIONED)

    def fail_at_first(number: int) -> int:
        context = TaskContext.get()
        if number % 250 == 249 and context is not None and context.attemptNumber() == 0:
            raise ZeroDivisionError("not yet")
        return number

    frame = orders(spark, 1_000).withColumn("id", udf(fail_at_first, "long", useArrow=False)("id"))
    save(frame, url)
    assert sorted(row["id"] for row in await read_rows(store, table)) == list(range(1_000))
    await clean(store, lake)
    assert files_below(warehouse) == {file.file_path async for file in store.stream_files(table.id)}
    await assert_counted(store, table.id)


async def test_unsupported_options_are_refused(spark: SparkSession, url: str, store: MetadataStore) -> None:
    frame = orders(spark, 1, 1)

    def overwrite() -> None:
        frame.write.format("astha").option("table", "shop.orders").option("registry", url).mode("overwrite").save()

    with pytest.raises(Exception, match="astha only inserts"):
        overwrite()
    with pytest.raises(Exception, match="name the table"):
        save(frame, url, "")
    with pytest.raises(Exception, match=r"there is no table 'shop\.nothing'"):
        save(frame, url, "shop.nothing")


async def test_s3(spark: SparkSession, sqlite_url: str, opened: Any, s3_lake: LakeSettings) -> None:
    store: MetadataStore = await opened(sqlite_url)
    table = await create_table(store, s3_lake.warehouse, schema=PARTITIONED)
    s3 = s3_lake.s3
    assert s3.endpoint is not None
    assert s3.access_key is not None
    assert s3.secret_key is not None
    options = {
        "lake.s3.endpoint": s3.endpoint,
        "lake.s3.allow_http": "true",
        "lake.s3.access_key": s3.access_key.get_secret_value(),
        "lake.s3.secret_key": s3.secret_key.get_secret_value(),
    }
    save(orders(spark, 100, 2), sqlite_url, **options)
    assert len(await read_rows(store, table, Objects(s3_lake))) == 100
