"""New files: divides rows among them, writes them with the lake's engine, and reads them back from storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.merge.checksums import Checksums
from components.compactor.merge.task import MergeFailed, MergeTask
from components.compactor.merge.timings import PhaseTimer
from components.lib.lake.files import WrittenFile
from components.lib.lake.files.parquet import ColumnHints, ParquetEngine
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import Sink, checksum_of
from registry.inputs import FileDraft

_READ_BACK_ROWS = 65_536


class RowSupply(Protocol):
    """Rows in their final order. Called from a thread, because the event loop may have to fetch them."""

    def take(self, rows: int) -> pa.Table | None:
        """Returns at most ``rows`` next rows; None after the last."""
        ...


class TableSlices:
    """Rows that are all in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._given = 0

    def take(self, rows: int) -> pa.Table | None:
        if self._given >= self._table.num_rows:
            return None
        found = self._table.slice(self._given, rows)
        self._given += found.num_rows
        return found


class TableStream:
    """Rows of tables that are read one after the other, as late as possible."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def take(self, rows: int) -> pa.Table | None:
        while self._rows < rows and (table := next(self._tables, None)) is not None:
            self._waiting.append(table)
            self._rows += table.num_rows
        if not self._rows:
            return None
        whole = pa.concat_tables(self._waiting).unify_dictionaries()
        self._waiting = [whole.slice(rows)] if whole.num_rows > rows else []
        self._rows = max(0, whole.num_rows - rows)
        return whole.slice(0, rows)


@dataclass
class FileSizing:
    """How many rows a file gets: about ``target_bytes`` once the compression is known, and the same for all files, so
    that none is small.
    """

    rows: int
    bytes_in: int
    target_bytes: int
    most_files: int
    quota: int | None = None

    def group_rows(self, most: int) -> int:
        """Returns the rows per row group, which is no larger than a file should be."""
        fit = self.rows * self.target_bytes // max(1, self.bytes_in)
        return max(1, min(most, fit))

    def learn(self, rows: int, size: int) -> None:
        """``rows`` rows took ``size`` bytes."""
        if self.quota is None:
            files = round(self.rows * size / max(1, rows) / self.target_bytes)
            self.quota = -(-self.rows // max(1, min(files, self.most_files)))


class Outputs:
    """Writes one file after the other. Used once."""

    def __init__(self, task: MergeTask, schema: TableSchema, engine: ParquetEngine, objects: Objects) -> None:
        self._task = task
        self._schema = schema
        self._engine = engine
        self._objects = objects
        self.files: list[FileDraft] = []

    async def write(self, supply: RowSupply, hints: ColumnHints, division: FileSizing, timer: PhaseTimer) -> None:
        step = division.group_rows(self._engine.row_group_rows)
        for number, uri in enumerate(self._task.outputs):
            ahead = await asyncio.to_thread(supply.take, step)
            if ahead is None:
                return
            last = number == len(self._task.outputs) - 1
            fill = self._filling(ahead, supply, hints, division, timer, step, last=last)
            with timer.phase("write"):
                written = await self._objects.write(uri, fill)
            self.files.append(self.draft(uri, written))

    def _filling(
        self,
        first: pa.Table,
        supply: RowSupply,
        hints: ColumnHints,
        division: FileSizing,
        timer: PhaseTimer,
        step: int,
        *,
        last: bool,
    ) -> Callable[[Sink], WrittenFile]:
        def fill(sink: Sink) -> WrittenFile:
            with timer.phase("encode"), self._engine.open(self._schema, sink, hints) as writer:
                rows: pa.Table | None = first
                while rows is not None:
                    writer.write(rows)
                    division.learn(writer.rows, writer.size)
                    left = step if last else min(step, (division.quota or 0) - writer.rows)
                    rows = supply.take(left) if left > 0 else None
            return writer.written

        return fill

    def draft(self, uri: str, written: WrittenFile) -> FileDraft:
        return FileDraft(
            file_path=uri,
            file_size=written.size,
            row_count=written.rows,
            schema_version=self._schema.version,
            partition_path=self._task.partition_path,
            file_type=self._engine.file_type,
            checksum=written.checksum,
            is_compressed=self._engine.compressed,
            column_stats=written.column_stats,
        )

    async def read_back(self, hints: ColumnHints, timer: PhaseTimer) -> Checksums:
        """Returns the checksums of the rows as they are in storage."""
        found = Checksums(self._schema)
        with timer.phase("verify"):
            for file in self.files:
                data = await self._objects.get(file.file_path)
                if checksum_of(data) != file.checksum:
                    raise MergeFailed(f"{file.file_path} was not stored as it was written: check the storage")
                count_rows(data, hints, found)
        return found


def count_rows(data: bytes, hints: ColumnHints, into: Checksums) -> None:
    source = pq.ParquetFile(pa.BufferReader(data), read_dictionary=sorted(hints.dictionary_typed), pre_buffer=False)
    for batch in source.iter_batches(_READ_BACK_ROWS, use_threads=False):
        into.add(pa.Table.from_batches([batch]))
