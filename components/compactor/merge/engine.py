"""`merge`: writes the rows of a group to new files, and proves that they hold the same rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from components.compactor.merge.allocator import merge_allocator
from components.compactor.merge.checksums import Checksums, ChunkChecksums
from components.compactor.merge.footer_stats import FooterStats
from components.compactor.merge.inputs import Inputs, decode
from components.compactor.merge.outputs import FileSizing, Outputs, RowSupply, TableSlices, TableStream
from components.compactor.merge.position_deletes import PositionDeletes, without
from components.compactor.merge.projection import Projection
from components.compactor.merge.row_group_copy import RowGroupCopy, why_not
from components.compactor.merge.strategy import StrategyChoice, choose_strategy
from components.compactor.merge.task import BadInput, MergeFailed, MergeInput, MergeResult, MergeTask, Strategy
from components.compactor.merge.timings import PhaseTimer
from components.compactor.merge.zorder import z_order
from components.lib.lake.files import engine_of
from components.lib.lake.files.parquet import ParquetEngine
from components.lib.lake.files.sorting import arrange, sorted_order
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.storage.objects import Objects

_HELD = 4  # a group that may be streamed is held in memory if it needs at most this fraction of it


def merge(task: MergeTask, *, clock: Callable[[], float] = time.perf_counter) -> MergeResult:
    """Blocks, and needs a thread without an event loop. If it raises, the caller removes the files that it has written.

    Raises `MergeFailed` for bad data or schemas, which no retry fixes; `MemoryError` if the group is too large for the
    task's memory, before that is filled where possible; and `StorageError`.
    """
    timer = PhaseTimer(clock)
    with merge_allocator(task.memory_bytes):
        return asyncio.run(_Merge(task, timer).run())


class _Merge:
    def __init__(self, task: MergeTask, timer: PhaseTimer) -> None:
        self._task = task
        self._timer = timer
        self._versions = versions_of(task)
        if not task.outputs:
            raise MergeFailed(f"{task.table}: a merge needs outputs")
        self._schema = next(iter(self._versions.values()))
        self._engine = engine_of_task(task, self._schema)
        self._objects = Objects(task.lake)
        self._deletes = PositionDeletes(task.inputs)

    async def run(self) -> MergeResult:
        task, size = self._task, sum(file.size for file in self._task.inputs)
        ordered = bool(self._schema.order.fields)
        if ordered and size > task.memory_bytes:
            raise self._too_large(size)
        inputs = Inputs(task.inputs, self._objects, hold_up_to=task.memory_bytes // _HELD)
        with self._timer.phase("read"):
            await self._deletes.load(task.deletes, self._objects, task.memory_bytes)
            await inputs.load()
            if ordered and not inputs.held:
                self._check_memory(self._footer_stats(inputs), size)  # before all of it is read in vain
                await inputs.hold()
        choice = self._choose(inputs)
        outputs = Outputs(task, self._schema, self._engine, self._objects)
        if choice.strategy == "copy":
            return await self._copy(inputs, outputs, choice)
        return await self._rewrite(inputs, outputs, choice)

    def _choose(self, inputs: Inputs) -> StrategyChoice:
        """A copy is possible only if the footers of all inputs allow it."""
        task, order_columns = self._task, len(self._schema.order.fields)
        if task.strategy in ("sort", "zorder") and not order_columns:
            raise MergeFailed(
                f"{task.table} has no sort_by, which strategy {task.strategy} needs: set one, or use auto"
            )
        choice = choose_strategy(task.strategy, order_columns=order_columns)
        if choice.strategy == "copy" and self._deletes.rows:
            return StrategyChoice("binpack", "rows are packed: other engines have deleted some of them")
        if choice.strategy == "copy":
            against = why_not(inputs, self._schema, self._engine, task.copy_above_bytes)
            if against is not None:
                return StrategyChoice("binpack", f"rows are packed: {against}")
            return StrategyChoice("copy", "all files agree, and their row groups are large enough to be kept")
        return StrategyChoice(choice.strategy, task.strategy_reason) if choice.strategy == task.strategy else choice

    async def _copy(self, inputs: Inputs, outputs: Outputs, choice: StrategyChoice) -> MergeResult:
        before, after = ChunkChecksums(self._schema), ChunkChecksums(self._schema)
        copies = []
        for uri, places in zip(self._task.outputs, self._shares(), strict=False):
            one = RowGroupCopy(inputs, places, self._schema, before)
            with self._timer.phase("write"):
                written = await self._objects.write(uri, one.fill)
            copies.append((one, outputs.draft(uri, written)))
        outputs.files = [file for _, file in copies]
        with self._timer.phase("verify"):
            rows = sum([await one.read_back(self._objects, file, after) for one, file in copies])
        return self._result(inputs, outputs, choice, rows, before.texts(), after.texts())

    def _shares(self) -> list[list[int]]:
        """Returns the inputs of each output: whole files, in their order, divided by size."""
        task, total = self._task, sum(file.size for file in self._task.inputs)
        many = max(1, min(round(total / task.target_bytes), len(task.outputs)))
        shares: list[list[int]] = [[] for _ in range(many)]
        passed = 0
        for place, file in enumerate(task.inputs):
            shares[min(many - 1, (passed + file.size // 2) * many // max(1, total))].append(place)
            passed += file.size
        return [share for share in shares if share]

    async def _rewrite(self, inputs: Inputs, outputs: Outputs, choice: StrategyChoice) -> MergeResult:
        task = self._task
        versions = [self._versions[file.schema_version] for file in task.inputs]
        columns = self._footer_stats(inputs)
        rows = sum(file.rows for file in task.inputs) - self._deletes.rows
        size = sum(file.size for file in task.inputs)
        division = FileSizing(rows, size, task.target_bytes, len(task.outputs))
        before = Checksums(self._schema)
        tables = self._decoded(inputs, versions, columns, before)
        supply: RowSupply
        if choice.strategy == "binpack":
            self._check_stream(inputs, columns, division)
            supply = TableStream(tables)
        else:
            self._check_memory(columns, size)
            supply = TableSlices(self._arranged(tables, choice.strategy))
        del tables
        hints = replace(columns.hints, in_order=choice.strategy == "sort")
        await outputs.write(supply, hints, division, self._timer)
        del supply
        after = await outputs.read_back(hints, self._timer)
        return self._result(inputs, outputs, choice, after.rows, before.texts(), after.texts())

    def _decoded(
        self, inputs: Inputs, versions: list[TableSchema], columns: FooterStats, into: Checksums
    ) -> Iterator[pa.Table]:
        known = known_ids(self._task, self._versions.values())
        projections = {
            schema.version: Projection(self._schema, schema, columns.hints.dictionary_typed, known)
            for schema in versions
        }
        for place, file in enumerate(inputs.files):
            with self._timer.phase("read"):
                tables = list(self._live(decode(inputs.take(place), file, projections[file.schema_version]), file))
            for table in tables:
                with self._timer.phase("verify"):
                    into.add(table)
                yield table

    def _live(self, tables: Iterable[pa.Table], file: MergeInput) -> Iterator[pa.Table]:
        """Yields the rows that are not deleted."""
        deleted, start = self._deletes.of(file.path), 0
        for table in tables:
            live = without(table, start, deleted)
            start += table.num_rows
            if live.num_rows or deleted is None:
                yield live

    def _arranged(self, tables: Iterator[pa.Table], strategy: Strategy) -> pa.Table:
        parts = list(tables)
        with self._timer.phase("sort"):
            whole = pa.concat_tables(parts) if parts else self._schema.arrow().empty_table()
            parts.clear()
            order = z_order(whole, self._schema) if strategy == "zorder" else sorted_order(whole, self._schema)
            if order is None:
                return whole
            columns, schema = whole.columns, whole.schema
            del whole  # so that each column is freed once it is reordered
            return arrange(columns, schema, order)

    def _footer_stats(self, inputs: Inputs) -> FooterStats:
        versions = [self._versions[file.schema_version] for file in self._task.inputs]
        return FooterStats.of(zip(inputs.footers, versions, strict=True), self._schema)

    def _check_memory(self, columns: FooterStats, size: int) -> None:
        """Raises MemoryError if the group can't be sorted within the task's memory."""
        rows = sum(file.rows for file in self._task.inputs)
        need = columns.decoded_bytes + max(size, 2 * columns.largest_bytes + 24 * rows)
        if need > self._task.memory_bytes:
            raise self._too_large(need)

    def _check_stream(self, inputs: Inputs, columns: FooterStats, division: FileSizing) -> None:
        """Two row groups may be in memory at a time: one that is read and one that is written."""
        held = sum(file.size for file in inputs.files) if inputs.held else 2 * max(file.size for file in inputs.files)
        at_once = division.group_rows(self._engine.row_group_rows) + max(file.rows for file in inputs.files)
        share = min(1.0, at_once / max(1, division.rows))
        need = held + int(2 * share * columns.decoded_bytes)
        if need > self._task.memory_bytes:
            raise self._too_large(need)

    def _too_large(self, need: int) -> MemoryError:
        task = self._task
        return MemoryError(
            f"{task.table} {task.partition_path}: {len(task.inputs)} files need about {need >> 20:,} MiB to be merged, "
            f"and a task may hold {task.memory_bytes >> 20:,} MiB: merge fewer at a time"
        )

    def _result(
        self,
        inputs: Inputs,
        outputs: Outputs,
        choice: StrategyChoice,
        rows: int,
        before: dict[int, str],
        after: dict[int, str],
    ) -> MergeResult:
        result = MergeResult(
            files=outputs.files,
            rows_in=sum(file.rows for file in inputs.files) - self._deletes.rows,
            rows_out=rows,
            checksums_in=before,
            checksums_out=after,
            bytes_read=inputs.bytes_read,
            bytes_written=sum(file.file_size for file in outputs.files),
            strategy=choice.strategy,
            why=choice.why,
            seconds=self._timer.seconds,
            rows_deleted=self._deletes.rows,
            named_by_deletes=self._deletes.others,
        )
        if not result.proven:
            raise MergeFailed(
                f"{self._task.table} {self._task.partition_path}: the new files do not hold the rows of the old files "
                f"({result.rows_in:,} rows in, {rows:,} out, strategy {choice.strategy}): nothing is swapped; report it"
            )
        return result


def known_ids(task: MergeTask, versions: Iterable[TableSchema]) -> frozenset[int]:
    """Returns the field ids that the table has or had."""
    return frozenset(task.retired_ids).union(*(schema.iceberg.field_ids for schema in versions))


def versions_of(task: MergeTask) -> dict[int, TableSchema]:
    """Returns the schemas by version, the current one first."""
    if not task.inputs or not task.versions:
        raise MergeFailed(f"{task.table}: a merge needs inputs and the table's schema")
    try:
        found = {each.schema_version: TableSchema.of(each, table=task.table) for each in task.versions}
    except SchemaProblem as problem:
        raise MergeFailed(str(problem)) from problem
    for file in task.inputs:
        if file.schema_version not in found:
            raise BadInput(file.path, f"has schema version {file.schema_version}, which {task.table} does not have")
    return found


def engine_of_task(task: MergeTask, schema: TableSchema) -> ParquetEngine:
    try:
        engine = engine_of(schema, task.versions[0].engine_config)
    except SchemaProblem as problem:
        raise MergeFailed(f"{task.table}: {problem}") from problem
    if not isinstance(engine, ParquetEngine):
        raise MergeFailed(f"{task.table} is in {schema.format}: only Parquet files can be merged")
    return engine
