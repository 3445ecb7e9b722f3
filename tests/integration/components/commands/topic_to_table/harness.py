"""A topic, a table, and rounds that run here instead of on Spark: the same reader and writer, task by task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pyiceberg.schema import Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from astha.clock import SystemLoopClock
from astha.settings import Settings, load_settings
from astha.subscribers import ComponentContext, LakeSettings
from components.commands.topic_to_table.conversion import PLACE
from components.commands.topic_to_table.sink import TopicTable, Wish
from components.commands.topic_to_table.writer import RoundOrder, RoundWriter
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager.spark import SparkInsert
from components.lib.streams.agents import Agent
from components.lib.streams.format import NewRecord
from components.lib.streams.spark_source import TopicReader, TopicScan
from components.lib.streams.writer import SegmentWriter, WriterSettings
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.models import LakeTable
from tests.lake import SIMPLE, create_table, files_below, read_rows, table_schema

TOPIC = "orders"
TABLE = "shop.orders"
_HEADER = StructType([StructField("name", StringType(), False), StructField("value", BinaryType())])
_TYPES: dict[str, tuple[DataType, bool]] = {
    "partition": (IntegerType(), False),
    "offset": (LongType(), False),
    "timestamp": (TimestampType(), False),
    "key": (BinaryType(), True),
    "value": (BinaryType(), True),
    "headers": (ArrayType(_HEADER), True),
}


class Killed(BaseException):
    """The process is gone: nothing of it runs after this."""


class HereRounds:
    """``at`` is told of each step before it is taken, and may raise."""

    def __init__(self, settings: Settings, at: Callable[[str], None] = lambda _: None) -> None:
        self._settings = settings
        self._at = at

    async def run(self, order: RoundOrder, columns: tuple[str, ...]) -> None:
        await asyncio.to_thread(self._run, order, columns)

    def _run(self, order: RoundOrder, columns: tuple[str, ...]) -> None:
        names = (*PLACE, *columns)
        options = {"topic": order.round.topic, "offsets": order.round.offsets(), "columns": ",".join(names)}
        schema = StructType([StructField(name, *_TYPES[name]) for name in names])
        reader = TopicReader(TopicScan.of(options, self._settings), schema)
        told = RoundOrder.of({"order": order.told()})
        writer = RoundWriter(SparkInsert.to(told.round.table, self._settings), told)
        messages = []
        try:
            self._at("planned")
            for split in reader.partitions():
                messages.append(writer.write(iter(list(reader.read(split)))))
                self._at("written")
            self._at("to be registered")
            writer.commit(list(messages))
            self._at("registered")
        except Exception:
            self._at("to be aborted")
            writer.abort(list(messages))
            raise


class Shop:
    def __init__(self, url: str, store: MetadataStore, lake: LakeSettings, table: LakeTable) -> None:
        self.url, self.store, self.lake, self.table = url, store, lake, table
        self.settings = load_settings(None, {"registry": {"url": url}, "lake": lake.model_dump()})
        self.around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)

    @property
    def warehouse(self) -> Path:
        """Of a lake on local disk."""
        return Path(self.lake.warehouse)

    async def produce(self, *values: tuple[int, Sequence[bytes | NewRecord | None]]) -> None:
        """To each partition named, an append of its own: a segment each."""
        clock = SystemLoopClock()
        async with Agent(self.store, clock) as agent, SegmentWriter(self.around, agent, WriterSettings()) as writer:
            for partition, given in values:
                records = [one if isinstance(one, NewRecord) else NewRecord(one) for one in given]
                await writer.append(TOPIC, partition, records)

    def job(
        self, at: Callable[[str], None] = lambda _: None, store: MetadataStore | None = None, **wish: Any
    ) -> TopicTable:
        chosen = Wish(**{"topic": TOPIC, "table": TABLE, **wish})
        return TopicTable(store or self.store, chosen, HereRounds(self.settings, at).run)

    async def ids(self) -> list[int]:
        return sorted(row["id"] for row in await read_rows(self.store, self.table, Objects(self.lake)))

    async def assert_tidy(self) -> None:
        """Nothing is in storage but what is registered, once the cleaner has been there."""
        await clean_intents(self.store, Objects(self.lake), 0, "cleaner")
        registered = {file.file_path async for file in self.store.stream_files(self.table.id)}
        assert {path for path in files_below(self.warehouse) if path.endswith(".parquet")} == registered


@asynccontextmanager
async def open_shop(url: str, warehouse: Path | LakeSettings, schema: Schema = SIMPLE) -> AsyncIterator[Shop]:
    """By the system's clock, as workers have it."""
    lake = LakeSettings(warehouse=str(warehouse)) if isinstance(warehouse, Path) else warehouse
    store = await open_store(url)
    try:
        await store.create_topic(TOPIC, 3)
        yield Shop(url, store, lake, await create_table(store, lake.warehouse, schema=table_schema(schema)))
    finally:
        await store.close()


def order(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "day": "2024-05-01", **more}).encode()


def orders(first: int, count: int) -> list[bytes]:
    return [order(number) for number in range(first, first + count)]


async def finish(job: TopicTable) -> TopicTable:
    ends = (await job.begin()).ends
    while await job.advance(ends):
        pass
    return job
