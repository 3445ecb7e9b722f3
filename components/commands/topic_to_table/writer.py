"""The write side of a round: tasks turn records into files, the driver registers them with the group's step."""

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
from components.commands.topic_to_table.errors import RoundFailed
from components.commands.topic_to_table.micro_batches import Round
from components.lib.storage_manager.manager import StorageManager
from components.lib.storage_manager.spark import AsthaWriter, SparkInsert, TaskFiles
from components.lib.storage_manager.table_handles import TableHandle
from components.lib.streams.spark_source import TopicReader, TopicScan
from registry.inputs import Registration

NAME = "astha_topic_table"


class RoundOrder(msgspec.Struct, frozen=True):
    """What the writer is told, as text in an option."""

    round: Round
    values: Values
    skip: bool

    def told(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> RoundOrder:
        return msgspec.json.decode(options["order"], type=cls)


@dataclass
class Converted(TaskFiles):
    records: Counter[int]
    skipped: int


class RoundWriter(AsthaWriter):
    def __init__(self, job: SparkInsert, order: RoundOrder) -> None:
        super().__init__(job)
        self._order = order

    async def write_rows(
        self, manager: StorageManager, target: TableHandle, batches: Iterable[pa.RecordBatch]
    ) -> Converted:
        order = self._order
        conversion = Conversion(row_form(target.schema, order.values), order.round.topic, skip=order.skip)
        files = await manager.write_files(target, conversion.tables(batches))
        return Converted(target.table.id, files, conversion.records, conversion.skipped)

    def registration(self, written: Sequence[TaskFiles]) -> Registration:
        """RoundFailed unless every record that was planned has come, once."""
        plan = self._order.round
        converted = [message for message in written if isinstance(message, Converted)]
        read: Counter[int] = sum((message.records for message in converted), Counter())
        for step in plan.steps:
            if read[step.partition] != step.records:
                raise RoundFailed(
                    f"{read[step.partition]:,} of {step.records:,} records of {plan.topic}/{step.partition}, offsets"
                    f" {step.start} to {step.stop - 1}, were read: nothing was registered, try again"
                )
        skipped = sum(message.skipped for message in converted)
        files = [file for message in converted for file in message.files]
        return Registration(
            table_id=converted[0].table_id,
            files=files,
            intents_of=self._insert.owner,
            advances=plan.advances(plan.records - skipped, skipped, len(files)),
        )


def topic_table_format(settings: Settings) -> type[DataSource]:
    """A format that has the settings in itself: Spark shows options in its plans and logs, and settings have secrets.

    A class made here travels to the workers by value; one of a module would be looked up there by name.
    """

    class TopicTableFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return TopicScan.of(self.options, settings).schema

        def reader(self, schema: StructType) -> TopicReader:
            return TopicReader(TopicScan.of(self.options, settings), schema)

        def writer(self, schema: StructType, overwrite: bool) -> RoundWriter:
            order = RoundOrder.of(self.options)
            return RoundWriter(SparkInsert.to(order.round.table, settings), order)

    return TopicTableFormat
