"""The same on a real Spark: micro-batches in one session, and the command, killed during one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from astha.subscribers import LakeSettings
from components.commands.topic_to_table.errors import BadRecord
from components.commands.topic_to_table.session import MicroBatchJobs, explain
from components.commands.topic_to_table.sink import SinkOptions, TopicSink
from components.commands.topic_to_table.writer import WriteRequest
from components.lib.spark.classic import ClassicSession
from components.lib.spark.settings import SparkSettings
from tests.integration.components.commands.topic_to_table.harness import TABLE, TOPIC, Shop, finish, open_shop, orders
from tests.lake import environment_of, files_below
from tests.spark_sessions import local_session
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_session() as session:
        yield session


@pytest.fixture
async def shop(sqlite_url: str, warehouse: Path) -> AsyncIterator[Shop]:
    async with open_shop(sqlite_url, warehouse) as opened:
        yield opened


def on_spark(spark: SparkSession, shop: Shop, **options: object) -> TopicSink:
    jobs = MicroBatchJobs(spark, shop.settings)
    session = ClassicSession(SparkSettings(), None, lambda: None)

    async def run(request: WriteRequest, columns: tuple[str, ...]) -> None:
        try:
            jobs.run(request, columns)  # in the test's own thread, to which the session belongs
        except Exception as error:
            raise explain(error, session) from error

    chosen = {"topic": TOPIC, "table": TABLE, **options}
    return TopicSink(shop.store, SinkOptions(**chosen), run)  # type: ignore[arg-type]


async def test_micro_batches(spark: SparkSession, shop: Shop) -> None:
    await shop.produce((0, orders(0, 40)), (1, orders(40, 40)), (1, [*orders(80, 10), b"no row", *orders(90, 10)]))
    with pytest.raises(BadRecord, match=r"orders/1, offset 50: not a JSON object"):
        await finish(on_spark(spark, shop))
    assert await shop.ids() == []
    await shop.assert_tidy()
    sink = await finish(on_spark(spark, shop, bad="skip"))
    assert (sink.totals.batches, sink.totals.rows, sink.totals.skipped, sink.totals.files) == (1, 100, 1, 1)
    assert await shop.ids() == list(range(100))


async def test_the_command_killed_during_a_micro_batch(shop: Shop) -> None:
    """Its files are written and not registered. The next process runs the micro-batch again, and registers it once."""
    await shop.produce((0, orders(0, 2_000)), (1, orders(2_000, 2_000)))
    command = [
        sys.executable, "-m", "astha.cli", "topics", "to-table", TOPIC, TABLE, "--registry", shop.url,
        "--set", f"lake.warehouse={shop.warehouse}", "--spark", "local[2]",
    ]  # fmt: skip
    process = await asyncio.to_thread(subprocess.Popen, command)
    try:
        await eventually(lambda: any(path.endswith(".parquet") for path in files_below(shop.warehouse)), "a file", 120)
        below = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    sink = await finish(shop.sink())  # beside its workers, which may still run
    assert await shop.ids() == list(range(4_000))
    assert sink.totals.rows in (0, 4_000)
    await asyncio.to_thread(psutil.wait_procs, below, 60)
    await shop.assert_tidy()
    assert await shop.ids() == list(range(4_000))


async def test_the_command_on_postgresql_and_s3(postgres_url: str, s3_lake: LakeSettings) -> None:
    """Spark's workers read segments from there and write files to there."""
    async with open_shop(postgres_url, s3_lake) as shop:
        await shop.produce((0, orders(0, 300)), (2, orders(300, 200)))
        command = [
            sys.executable, "-m", "astha.cli", "topics", "to-table", TOPIC, TABLE, "--registry", postgres_url,
            "--spark", "local[2]", "--json",
        ]  # fmt: skip
        for rows in (500, 0):
            ended = await asyncio.to_thread(
                subprocess.run,
                command,
                env={**os.environ, **environment_of(s3_lake)},
                stdout=subprocess.PIPE,
                check=True,
            )
            assert json.loads(ended.stdout)["rows"] == rows
            assert await shop.ids() == list(range(500))
        assert [file.row_count async for file in shop.store.stream_files(shop.table.id)] == [500]
