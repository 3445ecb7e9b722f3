"""A table with small files, and jobs that a test can pause at any step."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from astha.clock import SystemLoopClock
from astha.subscribers import LakeSettings
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import JobContext, JobLimits, Step
from components.compactor.merge import merge
from components.compactor.planning.compaction_spec import CompactionSpec
from components.compactor.spark.executor_protocol import Executor
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects
from registry.contract import MetadataStore
from registry.inputs import FileDraft
from registry.models import Compaction, LakeTable, TableFile
from tests.contracts.contents import assert_counted
from tests.doubles.merging import LocalExecutor
from tests.lake import files_below
from tests.parquet_files import PLAIN, row, write_file

QUICK = JobLimits(heartbeat_s=0.02, retry_wait_s=0.001)


class Gate:
    """Runs something before a step of a job, once."""

    def __init__(self, step: Step, act: Callable[[], Awaitable[object]]) -> None:
        self._step = step
        self._act: Callable[[], Awaitable[object]] | None = act

    async def __call__(self, step: Step) -> None:
        if step is self._step and self._act is not None:
            act, self._act = self._act, None  # once
            await act()


class Bench:
    def __init__(self, store: MetadataStore, warehouse: Path) -> None:
        self.store = store
        self.warehouse = warehouse
        self.lake = LakeSettings(warehouse=str(warehouse))
        self.table: LakeTable
        self.schema: TableSchema = PLAIN
        self._numbers = itertools.count()
        self._names = itertools.count()

    async def create(self, name: str = "orders", schema: TableSchema = PLAIN, **properties: str) -> LakeTable:
        self.schema = schema
        location = (self.warehouse / name).resolve().as_uri()
        self.table = await self.store.create_table("shop", name, location, schema.draft(properties=properties))
        return self.table

    async def insert(self, files: int = 1, *, rows: int = 3) -> list[TableFile]:
        """Adds files with unique rows."""
        return await self.store.add_files(self.table.id, self.write(files, rows))

    def write(self, files: int, rows: int = 3) -> list[FileDraft]:
        """Writes files that are not registered."""
        return [
            write_file(
                self.warehouse / self.table.name / "data",
                [row(next(self._numbers), name=f"n{number}") for number in range(rows)],
                self.schema,
                name=f"{next(self._names):05}.parquet",
            )
            for _ in range(files)
        ]

    def context(self, executor: Executor | None = None, **rest: Any) -> JobContext:
        return JobContext(
            store=rest.pop("store", self.store),
            executor=executor or LocalExecutor(merge),
            objects=Objects(self.lake),
            clock=SystemLoopClock(),
            owner=rest.pop("owner", "bench"),
            **{"limits": QUICK, **rest},
        )

    async def spec_of(self, *groups: Sequence[TableFile], **rest: Any) -> CompactionSpec:
        """Returns the spec of a job: all live files as one group, unless groups are given."""
        versions = await self.store.list_table_metadata(self.table.id)
        live = await self.store.list_files(self.table.id)
        chosen = groups or (live,)
        return CompactionSpec(
            table=self.table,
            partition_path=chosen[0][0].partition_path,
            groups=tuple(tuple(group) for group in chosen),
            versions=tuple(reversed(versions)),
            lake=self.lake,
            **rest,
        )

    async def job(self, executor: Executor | None = None, *groups: Sequence[TableFile], **rest: Any) -> CompactionJob:
        return CompactionJob(await self.spec_of(*groups), self.context(executor, **rest))

    def read(self, files: Sequence[TableFile | FileDraft]) -> list[int]:
        """Returns the ids of all rows, in order."""
        return sorted(
            number for file in files for number in pq.read_table(parse(file.file_path).path)["id"].to_pylist()
        )

    def merged(self, files: Sequence[TableFile]) -> FileDraft:
        """Writes a file with all rows of these, as another compactor would."""
        rows = [found for file in files for found in pq.read_table(parse(file.file_path).path).to_pylist()]
        directory = self.warehouse / self.table.name / "data"
        return write_file(directory, rows, self.schema, name=f"{next(self._names):05}.parquet")

    async def ids(self) -> list[int]:
        return self.read(await self.store.list_files(self.table.id))

    async def decisions(self) -> list[Compaction]:
        return await self.store.list_compactions()

    async def require_tidy(self) -> None:
        """Asserts that every file in storage is live or awaits deletion, and that no intent is left."""
        assert await self.store.list_stale_intents(0) == []
        live = {file.file_path for file in await self.store.list_files(self.table.id)}
        going = {file.file_path for file in await self.store.list_files_awaiting_deletion(table_id=self.table.id)}
        assert files_below(self.warehouse / self.table.name / "data") == live | going
        if await self.store.get_table_by_id(self.table.id) is not None:
            await assert_counted(self.store, self.table.id)


async def all_of(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work))
