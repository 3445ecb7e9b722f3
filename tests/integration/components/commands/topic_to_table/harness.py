"""A topic, a table, and micro-batches that run in this process instead of on Spark, with the same reader and writer."""

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
from components.commands.topic_to_table.sink import SinkOptions, TopicSink
from components.commands.topic_to_table.writer import MicroBatchWriter, WriteRequest
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager.spark import SparkInsert
from components.lib.streams.agents import LeaseAgent
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
    """Stands for the death of the process: none of its code runs after this."""


class LocalMicroBatches:
    """``at`` is called before each step, with its name, and may raise."""

    def __init__(self, settings: Settings, at: Callable[[str], None] = lambda _: None) -> None:
        self._settings = settings
        self._at = at

    async def run(self, request: WriteRequest, columns: tuple[str, ...]) -> None:
        await asyncio.to_thread(self._run, request, columns)

    def _run(self, request: WriteRequest, columns: tuple[str, ...]) -> None:
        names = (*PLACE, *columns)
        options = {"topic": request.batch.topic, "offsets": request.batch.offsets(), "columns": ",".join(names)}
        schema = StructType([StructField(name, *_TYPES[name]) for name in names])
        reader = TopicReader(TopicScan.from_options(options, self._settings), schema)
        decoded = WriteRequest.decode({"request": request.encode()})
        writer = MicroBatchWriter(SparkInsert.to(decoded.batch.table, self._settings), decoded)
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
        """The directory of a lake on local disk."""
        return Path(self.lake.warehouse)

    async def produce(self, *values: tuple[int, Sequence[bytes | NewRecord | None]]) -> None:
        """Appends to each partition named, a segment each."""
        clock = SystemLoopClock()
        async with (
            LeaseAgent(self.store, clock) as agent,
            SegmentWriter(self.around, agent, WriterSettings()) as writer,
        ):
            for partition, given in values:
                records = [one if isinstance(one, NewRecord) else NewRecord(one) for one in given]
                await writer.append(TOPIC, partition, records)

    def sink(
        self, at: Callable[[str], None] = lambda _: None, store: MetadataStore | None = None, **options: Any
    ) -> TopicSink:
        chosen = SinkOptions(**{"topic": TOPIC, "table": TABLE, **options})
        return TopicSink(store or self.store, chosen, LocalMicroBatches(self.settings, at).run)

    async def ids(self) -> list[int]:
        return sorted(row["id"] for row in await read_rows(self.store, self.table, Objects(self.lake)))

    async def assert_tidy(self) -> None:
        """After the cleaner has run, storage contains registered files only."""
        await clean_intents(self.store, Objects(self.lake), 0, "cleaner")
        registered = {file.file_path async for file in self.store.stream_files(self.table.id)}
        assert {path for path in files_below(self.warehouse) if path.endswith(".parquet")} == registered


@asynccontextmanager
async def open_shop(url: str, warehouse: Path | LakeSettings, schema: Schema = SIMPLE) -> AsyncIterator[Shop]:
    """With the system's clock, which workers use too."""
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


async def finish(sink: TopicSink) -> TopicSink:
    ends = (await sink.begin()).ends
    while await sink.advance(ends):
        pass
    return sink
