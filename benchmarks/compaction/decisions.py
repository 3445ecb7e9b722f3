"""Time from a commit to the decision: another process commits, and each commit makes a partition due."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.events import Event
from astha.subscribers import ComponentContext, LakeSettings
from benchmarks.compaction.data import UNSORTED
from benchmarks.compaction.lake import running
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, percentile
from components.compactor.merge import BadFile, MergeResult, MergeTask
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor
from registry.embedded_postgres import EmbeddedPostgres
from registry.models import Row

RATE = 500  # commits a second
_BEFORE = 4  # small files in each partition; the fifth makes it worth a look
_SIZE, _ROWS = 100_000, 100
_WARM_UP = 100  # commits that don't count
_TABLES = 10


class Never:
    """Merges nothing, because only decisions are measured."""

    async def merge(self, task: MergeTask) -> MergeResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def inspect(self, task: MergeTask) -> list[BadFile]:
        raise AssertionError(f"{task.table}: nothing is merged here")

    async def health(self) -> None:
        return

    async def close(self) -> None:
        return


class Watched(Compactor):
    """Records how long after its commit a transaction was evaluated."""

    late_ms: list[float]

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        await super().on_transaction(events)  # a decision is made before it returns
        self.late_ms.append((time.time_ns() // 1000 - events[0].committed_at) / 1000)

    @property
    def decisions(self) -> float:
        return sum(measure.value for measure in self.metrics() if measure.name == "decisions")


async def decision_figures(report: Report, directory: Path) -> None:
    commits = RATE * report.pick(10, 3)
    with EmbeddedPostgres(settings=SERVER) as server:
        url, store = await new_registry(server, "decisions")
        await asyncio.to_thread(_fill, url, commits)
        around = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(directory)))
        compactor = Watched(CompactorSettings(jobs=1), around, Never)
        compactor.late_ms = []
        try:
            async with running(url, store, {"compactor": compactor}):
                context = multiprocessing.get_context("spawn")
                writer = context.Process(target=_write, args=(url, commits), daemon=True)
                writer.start()
                while writer.is_alive() or len(compactor.late_ms) < commits:
                    await asyncio.sleep(0.05)
                    if not writer.is_alive() and writer.exitcode:
                        raise RuntimeError("the writer has failed")
                if compactor.decisions < commits:
                    raise RuntimeError(f"{compactor.decisions:.0f} decisions for {commits} commits")
        finally:
            await store.close()
    late_ms = sorted(compactor.late_ms[_WARM_UP:])
    what = f"commit to decision, {RATE} commits/s by another process, each of which makes a partition worth compacting"
    report.add("decision_p50_ms", percentile(late_ms, 0.5), what)
    report.add("decision_p99_ms", percentile(late_ms, 0.99), what, at_most=20)


def _fill(url: str, partitions: int) -> None:
    """Creates tables with that many partitions in all, each with a few small files and their statistics."""
    draft = UNSORTED.draft()
    with psycopg.connect(url) as connection:
        for number in range(_TABLES):
            each = partitions // _TABLES
            files = each * _BEFORE
            connection.execute(
                "INSERT INTO tables (id, database, name, location, row_count, total_size, file_count, last_modified, "
                "status, created_at, updated_at) VALUES (%s, 'bench', %s, %s, %s, %s, %s, 0, 'active', 0, 0)",
                [number + 1, f"t{number}", f"file:///nowhere/t{number}", files * _ROWS, files * _SIZE, files],
            )
            connection.execute(
                "INSERT INTO table_metadata (table_id, schema_version, schema, storage_engine, engine_config, format, "
                "compression, partition_by, sort_by, properties, last_modified, created_at, updated_at) "
                "VALUES (%s, 1, %s, 'parquet', '{}', 'parquet', 'zstd', %s, %s, '{}', 0, 0, 0)",
                [number + 1, str(draft.schema), str(draft.partition_by), str(draft.sort_by)],
            )
            connection.execute(
                "INSERT INTO table_stats (table_id, partition_path, row_count, file_count, total_size, last_modified, "
                "created_at, updated_at) SELECT %s, format('region=%%s', n), %s, %s, %s, 0, 0, 0 "
                "FROM generate_series(1, %s) n",
                [number + 1, _BEFORE * _ROWS, _BEFORE, _BEFORE * _SIZE, each],
            )
            connection.execute(
                "INSERT INTO table_files (table_id, file_name, file_path, file_size, file_type, partition_path, "
                "row_count, is_compressed, schema_version, operation, created_at, modified_at) "
                f"SELECT %s, 'f', format('file:///nowhere/%s/%%s/%%s', n, m), {_SIZE}, 'parquet', "
                f"format('region=%%s', n), {_ROWS}, true, 1, 'insert', 0, 0 "
                f"FROM generate_series(1, %s) n, generate_series(1, {_BEFORE}) m",
                [number + 1, number + 1, each],
            )


def _write(url: str, commits: int) -> None:
    """Adds one file per commit, with its statistics, as the registry's own verb does."""
    with psycopg.connect(url, autocommit=True) as connection:
        begun = time.perf_counter()
        for number in range(commits):
            time.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
            table, partition = number % _TABLES + 1, f"region={number // _TABLES + 1}"
            with connection.pipeline(), connection.transaction():
                connection.execute(
                    "INSERT INTO table_files (table_id, file_name, file_path, file_size, file_type, partition_path, "
                    "row_count, is_compressed, schema_version, operation, created_at, modified_at) "
                    f"VALUES (%s, 'f', %s, {_SIZE}, 'parquet', %s, {_ROWS}, true, 1, 'insert', 0, 0)",
                    [table, f"file:///nowhere/new/{number}", partition],
                )
                connection.execute(
                    f"UPDATE table_stats SET row_count = row_count + {_ROWS}, file_count = file_count + 1, "
                    f"total_size = total_size + {_SIZE} WHERE table_id = %s AND partition_path = %s",
                    [table, partition],
                )
