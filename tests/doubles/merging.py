"""A merge that anybody can check by eye, and executors that misbehave where a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.execution.local import LocalExecutor
from components.compactor.merge import MergeResult, MergeTask
from components.lib.lake.files import engine_of
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage import local_files
from components.lib.lake.storage.locations import parse
from registry.inputs import FileDraft


def naive_merge(task: MergeTask) -> MergeResult:
    """All rows into one file, of one schema version, on local disk."""
    schema = TableSchema.of(task.versions[0])
    rows = pa.concat_tables(
        [pq.ParquetFile(parse(part.path).path).read().cast(schema.arrow()) for part in task.inputs]
    ).combine_chunks()
    engine = engine_of(schema)
    written = local_files.write(parse(task.outputs[0]).path, lambda sink: engine.write(rows, schema, sink))
    draft = FileDraft(
        file_path=task.outputs[0],
        file_size=written.size,
        row_count=written.rows,
        schema_version=schema.version,
        partition_path=task.partition_path,
        checksum=written.checksum,
        column_stats=written.column_stats,
    )
    sums = {0: str(sorted(map(str, rows.to_pylist())))}
    return MergeResult(
        files=[draft], rows_in=rows.num_rows, rows_out=rows.num_rows, checksums_in=sums, checksums_out=dict(sums),
        bytes_read=sum(part.size for part in task.inputs), bytes_written=written.size, strategy="binpack",
        why="there is no other", seconds={"read": 0.0},
    )  # fmt: skip


class ScriptedExecutor(LocalExecutor):
    """Each merge takes the next of ``script``: an error to raise once its files are written, or what to make of its
    result, or None. After the last one all goes well.
    """

    def __init__(self, *script: Exception | Callable[[MergeResult], MergeResult] | None) -> None:
        super().__init__(naive_merge)
        self._script = list(script)
        self.tasks: list[MergeTask] = []

    async def merge(self, task: MergeTask) -> MergeResult:
        self.tasks.append(task)
        act = self._script.pop(0) if self._script else None
        result = await super().merge(task)
        if isinstance(act, Exception):
            raise act
        return result if act is None else act(result)


class HeldExecutor(LocalExecutor):
    """Writes its files, and then waits until it is released or cancelled."""

    def __init__(self, on_cancel: Exception | None = None) -> None:
        super().__init__(naive_merge)
        self._on_cancel = on_cancel
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()

    async def merge(self, task: MergeTask) -> MergeResult:
        result = await super().merge(task)
        self.arrived.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            if self._on_cancel is not None:
                raise self._on_cancel from None
            raise
        return result
