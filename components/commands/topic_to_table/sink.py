"""Copies a topic into a table, one micro-batch after the other, each exactly once, also beside other copiers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import msgspec
import structlog

from astha.errors import AsthaError
from components.commands.topic_to_table.conversion import Values, wanted_columns
from components.commands.topic_to_table.micro_batches import MicroBatch, MicroBatchPlanner, TopicProgress, read_progress
from components.commands.topic_to_table.writer import WriteRequest
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.table_lookup import TableName, current_metadata, find_table, full_name
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.inputs import Registration

log = structlog.get_logger(__name__)

RunMicroBatch: TypeAlias = Callable[[WriteRequest, tuple[str, ...]], Awaitable[None]]
"""Reads the columns of a micro-batch's records, writes files of them, and registers these with the new offsets."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `astha topics to-table`."""

    topic: str
    table: str
    group: str | None = None
    values: Values = "json"
    bad: Literal["stop", "skip"] = "stop"
    max_bytes: int = 256 << 20
    skip_lost: bool = False

    @property
    def group_id(self) -> str:
        """By default one per table, however its name is written."""
        return self.group or f"to-table:{TableName.parse(self.table)}"


class SinkTotals(msgspec.Struct):
    """What this process has done."""

    batches: int = 0
    records: int = 0
    rows: int = 0
    skipped: int = 0
    files: int = 0
    lost: int = 0  # records that were deleted before they were read
    overtaken: int = 0  # micro-batches that another process registered first


class TopicSink:
    def __init__(self, store: MetadataStore, options: SinkOptions, run_batch: RunMicroBatch) -> None:
        self._store = store
        self._options = options
        self._run_batch = run_batch
        self.totals = SinkTotals()
        self.progress: TopicProgress | None = None
        self.full = False  # whether the last micro-batch reached its size limit, so that there may be more

    async def begin(self) -> TopicProgress:
        """Creates the consumer group. Raises `NotFound` or `UnsuitableTable` before anything is started."""
        await self._columns()
        found = await self.read_progress()
        await self._store.ensure_consumer_group(self._options.group_id)
        return found

    async def read_progress(self) -> TopicProgress:
        self.progress = await read_progress(self._store, self._options.group_id, self._options.topic)
        return self.progress

    async def advance(self, stops: Mapping[int, int] | None = None) -> bool:
        """Runs one micro-batch, up to ``stops`` or the end. Returns False if there is nothing left.

        Raises its error if it was not registered.
        """
        options = self._options
        table, columns = await self._columns()
        planner = MicroBatchPlanner(
            self._store, options.group_id, options.topic, table,
            max_bytes=options.max_bytes, skip_lost=options.skip_lost,
        )  # fmt: skip
        batch = await planner.next_batch(await self.read_progress(), stops)
        if batch is None:
            self.full = False
            return False
        self.full = batch.size_bytes >= options.max_bytes
        try:
            await self._run(batch, columns)
        except (AsthaError, RegistryError) as error:
            # It may have been registered all the same: the registry knows.
            if not (await self.read_progress()).has_moved(batch):
                raise
            log.debug("micro-batch failed, but the group has moved", batch=batch.id, error=str(error))
            self._count(batch, await self.read_progress(), certain=False)
        else:
            self._count(batch, await self.read_progress(), certain=True)
        return True

    async def _run(self, batch: MicroBatch, columns: tuple[str, ...]) -> None:
        if batch.records:
            request = WriteRequest(batch, self._options.values, skip=self._options.bad == "skip")
            await self._run_batch(request, columns)
            return
        table = await find_table(self._store, batch.table)
        only_offsets = Registration(table_id=table.id, files=[], advances=batch.advances(0, 0, 0))
        await self._store.register_files([only_offsets])

    def _count(self, batch: MicroBatch, progress: TopicProgress, *, certain: bool) -> None:
        summary = progress.summary(batch)
        if summary is None and not certain:
            self.totals.overtaken += 1
            return
        self.totals.batches += 1
        self.totals.records += batch.records
        self.totals.lost += batch.lost
        if summary is not None:
            self.totals.rows += summary.rows
            self.totals.skipped += summary.skipped
            self.totals.files += summary.files
        else:  # later micro-batches have overwritten its notes, which takes several of them
            self.totals.rows += batch.records

    async def _columns(self) -> tuple[str, tuple[str, ...]]:
        """Returns the table's full name, and the columns of a record that its present schema takes."""
        table = await find_table(self._store, self._options.table)
        schema = TableSchema.of(await current_metadata(self._store, table), table=full_name(table))
        return full_name(table), wanted_columns(schema, self._options.values)
