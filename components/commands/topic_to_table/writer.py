"""The write side of a micro-batch: tasks turn records into files, the driver registers them with the new offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from astha.settings import Settings
from components.commands.topic_to_table.conversion import Conversion, Values, row_form
from components.commands.topic_to_table.errors import MicroBatchFailed
from components.commands.topic_to_table.micro_batches import MicroBatch
from components.lib.storage_manager.manager import StorageManager
from components.lib.storage_manager.spark import AsthaWriter, SparkInsert, TaskFiles
from components.lib.storage_manager.table_handles import TableHandle
from components.lib.streams.spark_source import TopicReader, TopicScan
from registry.inputs import Registration

NAME = "astha_topic_table"


class WriteRequest(msgspec.Struct, frozen=True):
    """What the writer is to do, as text in an option of the Spark format."""

    batch: MicroBatch
    values: Values
    skip: bool

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, options: Mapping[str, str]) -> WriteRequest:
        return msgspec.json.decode(options["request"], type=cls)


@dataclass
class Converted(TaskFiles):
    records: Counter[int]
    skipped: int


class MicroBatchWriter(AsthaWriter):
    def __init__(self, insert: SparkInsert, request: WriteRequest) -> None:
        super().__init__(insert)
        self._request = request

    async def write_rows(
        self, manager: StorageManager, target: TableHandle, batches: Iterable[pa.RecordBatch]
    ) -> Converted:
        request = self._request
        conversion = Conversion(row_form(target.schema, request.values), request.batch.topic, skip=request.skip)
        files = await manager.write_files(target, conversion.tables(batches))
        return Converted(target.table.id, files, conversion.records, conversion.skipped)

    def registration(self, written: Sequence[TaskFiles]) -> Registration:
        """Raises `MicroBatchFailed` unless every planned record was read once."""
        batch = self._request.batch
        converted = [message for message in written if isinstance(message, Converted)]
        read: Counter[int] = sum((message.records for message in converted), Counter())
        for part in batch.ranges:
            if read[part.partition] != part.records:
                raise MicroBatchFailed(
                    f"{read[part.partition]:,} of {part.records:,} records of {batch.topic}/{part.partition}, offsets"
                    f" {part.start} to {part.stop - 1}, were read: nothing was registered, try again"
                )
        skipped = sum(message.skipped for message in converted)
        files = [file for message in converted for file in message.files]
        return Registration(
            table_id=converted[0].table_id,
            files=files,
            intents_of=self._insert.owner,
            advances=batch.advances(batch.records - skipped, skipped, len(files)),
        )


def topic_table_format(settings: Settings) -> type[DataSource]:
    """Returns a Spark format that contains the settings, because Spark shows options in plans and logs.

    A class that is made at run time is sent to the workers by value; one of a module is imported there by name.
    """

    class TopicTableFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return TopicScan.from_options(self.options, settings).schema

        def reader(self, schema: StructType) -> TopicReader:
            return TopicReader(TopicScan.from_options(self.options, settings), schema)

        def writer(self, schema: StructType, overwrite: bool) -> MicroBatchWriter:
            request = WriteRequest.decode(self.options)
            return MicroBatchWriter(SparkInsert.to(request.batch.table, settings), request)

    return TopicTableFormat
