"""A daemon in this process, with the Iceberg updater and the compactor, and tables for it to compact."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import psycopg
import structlog
from pydantic import SecretStr
from pyspark.sql import SparkSession

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.gc_tuning import FreezingCollector
from astha.leadership import Leadership, LeaseSettings
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.subscribers import ComponentContext, LakeSettings, Subscriber
from astha.subscribers.lane_policy import LanePolicy
from benchmarks.processes import tree_cpu_seconds
from benchmarks.registries import new_registry
from components import iceberg_updater
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor import open_executor
from components.compactor.subscriber import Compactor
from components.lib.lake.iceberg import open_catalog
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import canonical
from components.lib.spark.classic import ClassicSession
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import FileDraft

_LANE = LanePolicy(delivery_timeout_s=300.0)
_LIMIT_S = 900.0
_LOOK_S = 0.01


@dataclass(frozen=True)
class Compacted:
    """From the commit that crossed the threshold to the Iceberg snapshot without the small files."""

    seconds: float
    cpu: float  # of this process, the JVM and its workers
    phases: Mapping[str, float]  # summed over the tasks
    files: int  # that are left


class Lake:
    def __init__(self, around: ComponentContext, url: str, compactor: Compactor, spark: SparkSession) -> None:
        self._around = around
        self._url = url
        self._compactor = compactor
        self._catalog = open_catalog(url, around.lake)
        self.spark = spark
        self._made = 0

    async def compact(
        self,
        schema: TableSchema,
        files: Sequence[FileDraft],
        last: Sequence[FileDraft],
        partitions: int,
        properties: Mapping[str, str] | None = None,
    ) -> Compacted:
        """``files`` exist before; ``last`` cross the threshold, one in each partition."""
        store, name = self._around.store, f"t{self._made}"
        inputs = (len(files) + len(last)) // partitions
        table = await store.create_table(
            "bench",
            name,
            self.location(),
            schema.draft(properties={"compaction.min-inputs": str(inputs), **(properties or {})}),
        )
        self._made += 1
        await store.add_files(table.id, files)
        await self._until(lambda: self._in_iceberg(name) == len(files), "Iceberg has the small files")
        phases, cpu = self._phases(), tree_cpu_seconds()
        started = time.perf_counter()
        await store.add_files(table.id, last)
        await self._until_done(table.id, partitions)
        found = await store.get_table_by_id(table.id)
        assert found is not None
        await self._until(lambda: self._in_iceberg(name) == found.file_count, "Iceberg has the merged files")
        seconds = time.perf_counter() - started
        spent = {phase: after - phases.get(phase, 0.0) for phase, after in self._phases().items()}
        return Compacted(seconds, tree_cpu_seconds() - cpu, spent, found.file_count)

    def location(self) -> str:
        """Returns the name of the next table."""
        return canonical(Path(self._around.lake.warehouse) / f"t{self._made}")

    def collect_garbage(self) -> None:
        """Returns the process id of the JVM that all contenders share."""
        jvm: Any = self.spark.sparkContext._jvm
        jvm.System.gc()

    def close(self) -> None:
        self._catalog.close()

    async def _until_done(self, table_id: int, partitions: int) -> None:
        """Asks the registry only when a job has ended: it is measured what the compactor costs, not who watches it."""
        ended = self._ended()
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while not await _is_done(connection, table_id, partitions):
                while self._ended() == ended:  # noqa: ASYNC110  (the end of a job sets no event)
                    await asyncio.sleep(_LOOK_S)
                ended = self._ended()

    def _ended(self) -> float:
        jobs = takewhile(lambda measure: measure.name == "jobs", self._compactor.metrics())  # they come first
        return sum(float(measure.value) for measure in jobs)

    def _in_iceberg(self, name: str) -> int | None:
        with psycopg.connect(self._url) as connection:
            if connection.execute("SELECT FROM iceberg_tables WHERE table_name = %s", [name]).fetchone() is None:
                return None
        current = self._catalog.load_table(f"bench.{name}").current_snapshot()
        return 0 if current is None or current.summary is None else int(current.summary["total-data-files"] or 0)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        began = time.perf_counter()
        while not await asyncio.to_thread(holds):
            if time.perf_counter() - began > _LIMIT_S:
                raise TimeoutError(what)
            await asyncio.sleep(_LOOK_S)

    def _phases(self) -> dict[str, float]:
        return {
            measure.labels["phase"]: float(measure.value)
            for measure in self._compactor.metrics()
            if measure.name == "seconds" and measure.labels
        }


async def _is_done(connection: psycopg.AsyncConnection, table_id: int, partitions: int) -> bool:
    """Raises RuntimeError if a compaction did not go through."""
    cursor = await connection.execute("SELECT status, reason FROM compactions WHERE table_id = %s", [table_id])
    rows = await cursor.fetchall()
    failed = [reason for status, reason in rows if status in ("failed", "aborted", "cancelled")]
    if failed:
        raise RuntimeError(f"a compaction did not go through: {failed[0]}")
    return len([status for status, _ in rows if status == "done"]) >= partitions


@asynccontextmanager
async def open_lake(
    server: EmbeddedPostgres, directory: Path, spark: Mapping[str, str], *, jobs: int = 3
) -> AsyncIterator[Lake]:
    """Returns a compactor whose Spark session is warm: it has merged once.

    ``jobs`` is one more than Spark has cores, so that no core waits while a job is planned or swapped.
    """
    url, store = await new_registry(server, "compaction")
    clock = SystemLoopClock()
    around = ComponentContext(store, clock, SecretStr(url), LakeSettings(warehouse=str(directory)))
    settings = CompactorSettings.model_validate({"jobs": jobs, "spark": {"options": dict(spark), "memory": "2g"}})
    executor = open_executor(settings.spark, around.lake, around.redactor)
    session = await executor.start()
    assert isinstance(session, ClassicSession)
    compactor = Compactor(settings, around, lambda: executor)
    updater = iceberg_updater.create({}, around)
    async with running(url, store, {"iceberg_updater": updater, "compactor": compactor}):
        lake = Lake(around, url, compactor, SparkSession(session.context))
        try:
            yield lake
        finally:
            lake.close()
    await store.close()


@asynccontextmanager
async def running(url: str, store: MetadataStore, subscribers: Mapping[str, Subscriber]) -> AsyncIterator[Daemon]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    clock = SystemLoopClock()
    daemon = Daemon(
        store,
        PostgresSource(url, store, PostgresSourceSettings(slot=f"bench_{time.time_ns()}"), clock),
        [NamedSubscriber(name, subscriber, _LANE) for name, subscriber in subscribers.items()],
        Leadership(store, LeaseSettings(), "benchmark", clock),
        DaemonSettings(),
        clock,
    )
    task = asyncio.create_task(daemon.run())
    while not all(lane.state == "live" for lane in daemon.lanes):
        await asyncio.sleep(_LOOK_S)
        if task.done():
            task.result()
        broken = [f"{lane.name}: {lane.reason}" for lane in daemon.lanes if lane.state == "broken"]
        if broken:
            task.cancel()
            raise RuntimeError(broken[0])
    try:
        with FreezingCollector():  # as `astha run` does
            yield daemon
    finally:
        daemon.stop()
        await task
