"""What the number of tables costs: creating and filling one of many, a restart of the daemon, and its memory.

The daemon is a process of its own, `astha run` with all components of the lake but the compactor. Tables are created
and get one file each; a batch ends when Iceberg has its last file.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import psycopg

from astha.subscribers import LakeSettings
from benchmarks.lake.iceberg import SCHEMA, sample_file
from benchmarks.processes import deployed_environment, memory_mb
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, run
from components.lib.lake.storage.locations import table_location
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import FileDraft
from registry.models import LakeTable, TableFile

_BATCH = 25
_LIMIT_S = 600
_SUBSCRIPTIONS = """
components:
  iceberg_updater: {tables: [table_metadata, table_files, table_delete_files, iceberg_commits]}
  snapshotter: {tables: [table_metadata, table_files, table_snapshots]}
  metadata_orchestrator: {tables: [tables, table_metadata]}
"""
_FILLED = "SELECT count(*) FROM iceberg_tables WHERE previous_metadata_location IS NOT NULL"
_PRESENT = "SELECT count(*) FROM iceberg_tables"


async def table_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(settings=SERVER) as server:
        url, store = await new_registry(server, "tables")
        lake = _Lake(Path(name), url, store, psycopg.connect(url, autocommit=True))
        try:
            await _measure(report, lake, report.pick(10_000, 200), report.pick(1_000, 100))
        finally:
            lake.connection.close()
            await store.close()


async def _measure(report: Report, lake: _Lake, many: int, few: int) -> None:
    each = list[float]()
    async with lake.daemon() as (pid, _):
        await lake.fill(_BATCH)  # warms up
        while lake.created < many:
            each.append(await lake.fill(_BATCH) / _BATCH)
            if lake.created == few:
                memory_few = memory_mb(pid)[0]
        memory_many = memory_mb(pid)[0]
    width = max(1, few // _BATCH // 2)
    early, late = median(each[: 2 * width]), median(each[-2 * width :])
    report.add(
        "many_tables_cost_growth",
        late / early,
        f"creating a table and committing a file to it, medians of batches of {_BATCH}: {early * 1000:.1f} ms up to "
        f"{few:,} tables, {late * 1000:.1f} ms up to {many:,}",
        at_most=1.5,
    )
    report.add(
        "table_memory_kb",
        (memory_many - memory_few) * 1024 / (many - few),
        f"growth of the daemon's memory per table: {memory_few:.0f} MB with {few:,}, {memory_many:.0f} with {many:,}",
    )
    async with lake.daemon() as (_, ready_s):
        report.add(
            "restart_to_ready_s", ready_s, f"from the process's start until /readyz says so, {many:,} tables", at_most=5
        )
        created = await lake.create_one()
        report.add("first_create_s", created, "first table after the restart, until Iceberg has it", at_most=0.2)
    async with lake.daemon():
        report.add("first_drop_s", await lake.drop_one(), "first drop after a restart, until it is gone", at_most=0.2)


class _Lake:
    def __init__(self, directory: Path, url: str, store: MetadataStore, connection: psycopg.Connection) -> None:
        self._url = url
        self._store = store
        self.connection = connection
        self._settings = LakeSettings(warehouse=str(directory / "warehouse"))
        self._subscriptions = directory / "subscriptions.yaml"
        self._subscriptions.write_text(_SUBSCRIPTIONS)
        self._sample = sample_file(directory)
        self._last: LakeTable | None = None
        self.created = 0

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[tuple[int, float]]:
        """Yields the process and the seconds that it took to become ready."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = deployed_environment(
            ASTHA_REGISTRY=self._url,
            ASTHA_SUBSCRIPTIONS=str(self._subscriptions),
            ASTHA_SERVER__PORT=str(port),
            ASTHA_LOG__LEVEL="error",
            ASTHA_LAKE__WAREHOUSE=self._settings.warehouse,
        )
        started = perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "astha.cli", "run", env=environment)
        try:
            await self._until(lambda: _is_ready(port))
            yield process.pid, perf_counter() - started
        finally:
            process.terminate()
            await process.wait()

    async def fill(self, count: int) -> float:
        """Creates tables with a file each. Returns the seconds until Iceberg has all of it."""
        started = perf_counter()
        for _ in range(count):
            table = await self._create()
            await self._store.add_files(table.id, [_draft(self._sample, table)])
        await self._until(lambda: self._count(_FILLED) == self.created)
        return perf_counter() - started

    async def create_one(self) -> float:
        before, started = self._count(_PRESENT), perf_counter()
        self._last = await self._create()
        await self._until(lambda: self._count(_PRESENT) == before + 1)
        return perf_counter() - started

    async def drop_one(self) -> float:
        assert self._last is not None
        before, started = self._count(_PRESENT), perf_counter()
        await self._store.drop_table(self._last.id)
        await self._until(lambda: self._count(_PRESENT) == before - 1)
        return perf_counter() - started

    async def _create(self) -> LakeTable:
        name = f"t{self.created}"
        self.created += 1
        location = table_location(self._settings.warehouse, "bench", name)
        return await self._store.create_table("bench", name, location, SCHEMA.draft())

    def _count(self, query: str) -> int:
        row = self.connection.execute(query).fetchone()
        return 0 if row is None else int(row[0])

    async def _until(self, condition: Callable[[], bool]) -> None:
        give_up = perf_counter() + _LIMIT_S
        while not await asyncio.to_thread(condition):
            if perf_counter() > give_up:
                raise SystemExit(f"the daemon has not got so far within {_LIMIT_S} s")
            await asyncio.sleep(0.005)


def _draft(sample: TableFile, table: LakeTable) -> FileDraft:
    return FileDraft(
        file_path=f"{table.location}/data/0.parquet",
        file_size=sample.file_size,
        row_count=sample.row_count,
        schema_version=1,
        checksum=sample.checksum,
        column_stats=sample.column_stats,
    )


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(run("many tables", table_figures))
