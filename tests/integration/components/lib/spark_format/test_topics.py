"""Topics read by a real Spark: batches, ranges, columns, streams that resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan
from pyspark.sql.types import StructType

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.spark_format import register
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.format import NewRecord
from components.lib.streams.spark_source import TopicReader, TopicScan
from components.lib.streams.writer import SegmentWriter, WriterSettings
from registry.connect import open_store
from registry.contract import MetadataStore
from tests.spark_sessions import local_session

pytestmark = [
    pytest.mark.slow,
    # `collect` leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    options = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with local_session(options=options) as session:
        register(session)
        yield session


class Topic:
    """A topic of two partitions. The value of a record is its offset, its timestamp so many seconds after the start."""

    def __init__(self, url: str, store: MetadataStore, warehouse: Path) -> None:
        self.url = url
        self.store = store
        self._context = ComponentContext(
            store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(warehouse))
        )
        self._ends = [0, 0]

    async def append(self, *counts: int) -> None:
        clock = SystemLoopClock()
        settings = WriterSettings(block_bytes=1_000)
        async with LeaseAgent(self.store, clock) as agent, SegmentWriter(self._context, agent, settings) as writer:
            for partition, count in enumerate(counts):
                first = self._ends[partition]
                records = [
                    NewRecord(b"%d" % number, key=b"k" if number % 2 else None, timestamp=START_MS + number * 1000,
                              headers=(("h", b"x"),) if number % 3 == 0 else ())
                    for number in range(first, first + count)
                ]  # fmt: skip
                await writer.append("clicks", partition, records)
                self._ends[partition] += count

    def load(self, spark: SparkSession, **options: str) -> DataFrame:
        reader = spark.read.format("astha").option("topic", "clicks").option("registry", self.url)
        return reader.options(**options).load()


@pytest.fixture
async def topic(sqlite_url: str, warehouse: Path) -> AsyncIterator[Topic]:
    store = await open_store(sqlite_url)
    await store.create_topic("clicks", 2)
    yield Topic(sqlite_url, store, warehouse)
    await store.close()


async def test_batches(spark: SparkSession, topic: Topic) -> None:
    for _ in range(3):
        await topic.append(100, 50)
    frame = topic.load(spark, split_bytes="1500")
    rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
    assert [(row["partition"], row["offset"]) for row in rows] == [
        *((0, number) for number in range(300)),
        *((1, number) for number in range(150)),
    ]
    assert all(bytes(row["value"]) == b"%d" % row["offset"] for row in rows)
    assert [row["key"] for row in rows[:3]] == [None, b"k", None]
    assert (rows[0]["headers"][0]["name"], rows[0]["headers"][0]["value"]) == ("h", b"x")
    assert not rows[1]["headers"]
    assert rows[7]["timestamp"].timestamp() * 1000 == START_MS + 7_000
    some = topic.load(spark, partitions="1", **{"from": "2023-11-14T22:14:20Z", "to": "110"}, columns="offset,value")
    assert some.columns == ["offset", "value"]
    assert sorted(row["offset"] for row in some.collect()) == list(range(60, 110))  # from a minute after the start
    last = topic.load(spark, columns="partition,offset").where("partition = 1 AND offset >= 140 AND offset < 145")
    assert sorted(row["offset"] for row in last.collect()) == [140, 141, 142, 143, 144]
    await topic.store.delete_segments_before("clicks", 0, 100)
    with pytest.raises(PySparkException, match="the first retained offset is 100"):
        topic.load(spark, **{"from": "0"}).count()


async def test_tasks_are_runs_of_adjacent_segments(topic: Topic) -> None:
    for _ in range(3):
        await topic.append(100, 50)
    whole = await asyncio.to_thread(TopicReader(_scan(topic), StructType()).partitions)
    assert len(whole) == 2
    small = await asyncio.to_thread(TopicReader(_scan(topic, split_bytes="1"), StructType()).partitions)
    assert len(small) == 6
    filtered = TopicReader(_scan(topic, split_bytes="1"), StructType())
    filters: list[Filter] = [EqualTo(("partition",), 0), GreaterThan(("offset",), 150)]
    assert list(filtered.pushFilters(filters)) == filters  # Spark evaluates them again
    assert [split.start for split in await asyncio.to_thread(filtered.partitions)] == [150, 200]  # type: ignore[attr-defined]


def _scan(topic: Topic, **options: str) -> TopicScan:
    return TopicScan.from_options({"topic": "clicks", "registry": topic.url, **options})


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="name the topic"):
        TopicScan.from_options({})
    with pytest.raises(ConfigError, match="choose among partition"):
        TopicScan.from_options({"topic": "clicks", "columns": "nothing"})
    with pytest.raises(ValueError, match="write earliest, latest"):
        TopicScan.from_options({"topic": "clicks", "from": "soon"})


async def test_a_stream_continues_at_its_checkpoint(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    async def catch_up() -> list[tuple[int, int]]:
        frame = spark.readStream.format("astha").option("topic", "clicks").option("registry", topic.url).load()
        query = (
            frame.select("partition", "offset").writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start(str(tmp_path / "out"))
        )  # fmt: skip
        await asyncio.to_thread(query.awaitTermination, 120)
        if query.exception() is not None:
            raise query.exception() or AssertionError
        return sorted((row["partition"], row["offset"]) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    await topic.append(20, 10)
    wanted = [*((0, number) for number in range(20)), *((1, number) for number in range(10))]
    assert await catch_up() == wanted
    await topic.append(5, 5)
    assert len(await catch_up()) == 40
