"""The compactor's figures: against plain PySpark and Iceberg's own procedure, on the same files in the same session.

Ours is timed whole, from the commit that crosses the threshold to the Iceberg snapshot that readers see: decision,
plan, merge, comparison of checksums, swap in the registry and commit. The others are timed from their call.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

from benchmarks.compaction.data import PARTITIONS, SORTED, UNSORTED, SmallFiles
from benchmarks.compaction.decisions import decision_figures
from benchmarks.compaction.lake import Compacted, Lake, open_lake
from benchmarks.compaction.peers import IcebergProcedure, Peer, duckdb_alone, plain_spark, pyarrow_alone
from benchmarks.processes import peaks_mb, reset_peaks, tree_cpu_seconds
from benchmarks.registries import SERVER
from benchmarks.report import Report, run
from components.lib.lake.schema.table_schema import TableSchema
from registry.embedded_postgres import EmbeddedPostgres

TARGET = 128 << 20
COPY = {"compaction.strategy": "copy"}
_PROCESSES = {"driver": "driver", "java": "jvm", "python": "workers"}  # by the name of their program
_PEAK_MB = 3_600  # of all three: half of what they had before decision 0031
_SMALL = 5  # files of a small job
_ALONE = "alone, without planning, proof, statistics or commit"


class Took(NamedTuple):
    seconds: float
    cpu: float


class Goals(NamedTuple):
    """How many times the others' time ours goes into, at least."""

    spark: float
    iceberg: float
    duckdb: float | None = None


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name:
        directory = Path(name)
        await decision_figures(report, directory / "decisions")  # first: in a process as young as a daemon's
        files = SmallFiles(directory / "files", report.pick(1_000, 120))
        report.say(f"{files.count:,} files of {files.size / files.count / 1e3:.0f} kB")
        async with AsyncExitStack() as stack:
            server = stack.enter_context(EmbeddedPostgres(settings=SERVER))
            iceberg = None if report.quick else IcebergProcedure(directory / "iceberg")
            spark = {} if iceberg is None else iceberg.spark_settings()
            lake = await stack.enter_async_context(open_lake(server, directory / "lake", spark))
            bench = Bench(report, lake, iceberg, files, directory)
            await bench.memory()
            await bench.warm_up()
            await bench.against_others(SORTED, "", {}, Goals(spark=2.0, iceberg=4.5, duckdb=1.0))
            await bench.against_others(UNSORTED, "_copy", COPY, Goals(spark=7.0, iceberg=10.0))
            if iceberg is not None:
                await bench.small_jobs()
                await bench.growth()
                iceberg.close()
                different = SmallFiles(directory / "different", files.count, files.count)
                await Bench(report, lake, None, different, directory / "again").against_duckdb("_different")


class Bench:
    def __init__(
        self, report: Report, lake: Lake, iceberg: IcebergProcedure | None, files: SmallFiles, directory: Path
    ) -> None:
        self._report = report
        self._lake = lake
        self._iceberg = iceberg
        self._files = files
        self._scratch = directory / "scratch"
        self._plain = files.link((directory / "plain").as_uri())

    async def memory(self) -> None:
        """Comes first: the others merge in the same driver and the same JVM, which keep what they have grown to."""
        for suffix, schema, properties in (("", SORTED, {}), ("_copy", UNSORTED, COPY)):
            before = peaks_mb()
            reset_peaks()
            await self._ours(schema, properties)
            peaks = peaks_mb()
            found = {shown: peaks.get(name, 0.0) for name, shown in _PROCESSES.items()}
            self._report.add(
                f"peak_memory_mb{suffix}",
                sum(found.values()),
                f"Astha alone, MB: {', '.join(f'{who} {peak:,.0f}' for who, peak in found.items())}"
                f" (before it, driver {before['driver']:,.0f}); what workers share counts for each",
                at_most=None if suffix else _PEAK_MB,
            )
            if not suffix:
                for who, peak in found.items():
                    self._report.add(f"peak_{who}_mb", peak, "of these")

    async def warm_up(self) -> None:
        """Lets every contender merge once, so that code is loaded and compiled and workers are running."""
        few = self._plain[: PARTITIONS * 2]
        for ordered in (True, False):
            await asyncio.to_thread(plain_spark, self._lake.spark, few, self._scratch, ordered=ordered)
        for schema, properties in ((SORTED, {}), (UNSORTED, COPY)):
            await self._ours(schema, properties, PARTITIONS * 10)
            await self._theirs(schema, PARTITIONS * 2)
        self._report.say("warm")

    async def against_others(self, schema: TableSchema, suffix: str, properties: dict[str, str], goals: Goals) -> None:
        """Each round, everyone merges once, so that a disturbance of the machine affects all of them."""
        report, ordered = self._report, schema is SORTED
        ours, spark, theirs, duckdb = [], [], [], []
        for _ in range(report.pick(3, 1)):
            await self._calm()
            ours.append(await self._ours(schema, properties))
            await self._calm()
            duckdb.append(await self._alone(duckdb_alone, ordered))
            await self._calm()
            spark.append(await self._timed(lambda: self._run_spark(ordered)))
            if self._iceberg is not None:
                await self._calm()
                theirs.append(await self._theirs(schema))
        how = "sorted" if ordered else "row groups copied"
        mine = f"{how}: {_cost(ours)}; {_phases(ours)}; {ours[-1].files} files left"
        report.add(
            f"speedup_vs_plain_spark{suffix}",
            _seconds(spark) / _seconds(ours),
            f"{mine}; plain PySpark{' sorted' if ordered else ''}: {_cost(spark)}",
            at_least=goals.spark,
        )
        if theirs:
            report.add(
                f"speedup_vs_iceberg{suffix}",
                _seconds(theirs) / _seconds(ours),
                f"rewrite_data_files, {'sort' if ordered else 'binpack'}: {_cost(theirs)}",
                at_least=goals.iceberg,
            )
        self._compare_with_duckdb(suffix, ours, duckdb, goals.duckdb)
        took = await self._alone(pyarrow_alone, ordered)
        report.add(f"speedup_vs_pyarrow{suffix}", took.seconds / _seconds(ours), f"pyarrow {_ALONE}: {_cost([took])}")

    async def against_duckdb(self, suffix: str) -> None:
        """Sorted, and only these two: the files of the other comparisons have few contents, which compress well."""
        ours, duckdb = [], []
        for _ in range(3):
            await self._calm()
            ours.append(await self._ours(SORTED, {}))
            await self._calm()
            duckdb.append(await self._alone(duckdb_alone, ordered=True))
        self._compare_with_duckdb(suffix, ours, duckdb, None)

    def _compare_with_duckdb(self, suffix: str, ours: list[Compacted], duckdb: list[Took], goal: float | None) -> None:
        self._report.add(
            f"speedup_vs_duckdb{suffix}",
            _seconds(duckdb) / _seconds(ours),
            f"DuckDB {_ALONE}: {_cost(duckdb)}; ours: {_cost(ours)}",
            at_least=None if self._report.quick else goal,  # for 1,000 files: a job's own costs do not shrink
        )
        self._report.add(
            f"cpu_vs_duckdb{suffix}",
            median(took.cpu for took in duckdb) / median(took.cpu for took in ours),
            "CPU seconds of the same merges, of all processes",
        )

    async def small_jobs(self) -> None:
        """Commits the fifth small file of a partition and waits for its compaction."""
        ours = [await self._ours(SORTED, {}, _SMALL, partitions=1) for _ in range(8)][2:]
        theirs = [await self._theirs(SORTED, _SMALL, partitions=1) for _ in range(8)][2:]
        self._report.add(
            "small_job_vs_iceberg",
            _seconds(ours) / _seconds(theirs),
            f"{_SMALL} small files, small_job_s: {_cost(ours)}; rewrite_data_files: {_cost(theirs)}",
            at_most=0.5,
        )

    async def growth(self) -> None:
        few = await self._ours(SORTED, {})
        many = await self._ours(SORTED, {}, self._files.count * 10)
        self._report.add(
            "growth_10x",
            many.seconds / (10 * few.seconds),
            f"{self._files.count * 10:,} files: {_cost([many])}; over ten times {self._files.count:,}: {_cost([few])}",
            at_most=1.1,
        )

    async def _ours(
        self, schema: TableSchema, properties: dict[str, str], count: int | None = None, partitions: int = PARTITIONS
    ) -> Compacted:
        location = self._lake.location()
        files = self._files.link(location, count, every=PARTITIONS // partitions)
        took = await self._lake.compact(schema, files[:-partitions], files[-partitions:], partitions, properties)
        shutil.rmtree(location.removeprefix("file://"))
        return took

    async def _theirs(self, schema: TableSchema, count: int | None = None, partitions: int = PARTITIONS) -> Took:
        iceberg, ordered = self._iceberg, schema is SORTED
        if iceberg is None:
            return Took(0.0, 0.0)
        table = iceberg.create(schema)
        files = self._files.link(table.location, count, every=PARTITIONS // partitions)
        iceberg.add(table, files, schema)

        def rewrite() -> None:
            removed = iceberg.rewrite(self._lake.spark, table, ordered=ordered, target_bytes=TARGET)
            if removed != len(files):
                raise RuntimeError(f"Iceberg's procedure has rewritten {removed} of {len(files)} files")

        took = await self._timed(rewrite)
        shutil.rmtree(table.location.removeprefix("file://"))
        return took

    async def _calm(self) -> None:
        """Collects the JVM's garbage and writes dirty pages, so that no contender pays for the previous one."""
        await asyncio.to_thread(self._lake.collect_garbage)
        await asyncio.to_thread(os.sync)

    async def _alone(self, peer: Peer, ordered: bool) -> Took:
        return await self._timed(lambda: peer(self._plain, self._scratch, ordered=ordered))

    def _run_spark(self, ordered: bool) -> None:
        plain_spark(self._lake.spark, self._plain, self._scratch, ordered=ordered)

    async def _timed(self, work: Callable[[], None]) -> Took:
        cpu, started = tree_cpu_seconds(), perf_counter()
        await asyncio.to_thread(work)
        return Took(perf_counter() - started, tree_cpu_seconds() - cpu)


def _seconds(taken: list[Took] | list[Compacted]) -> float:
    return median(took.seconds for took in taken)


def _cost(taken: list[Took] | list[Compacted]) -> str:
    return f"{_seconds(taken):.2f} s, CPU {median(took.cpu for took in taken):.1f} s"


def _phases(taken: list[Compacted]) -> str:
    return "of all tasks " + ", ".join(f"{phase} {spent:.1f} s" for phase, spent in taken[-1].phases.items())


if __name__ == "__main__":
    sys.exit(run("compaction", measure))
