"""A refresh whose table has no file in Iceberg yet: memory, and how long it holds the event loop at a time.

It runs in a process of its own, as in the daemon: the registry is read in the event loop, manifests are written on the
updater's thread.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg

from astha.gc_tuning import FreezingCollector
from astha.subscribers import LakeSettings
from benchmarks.lake.iceberg import SCHEMA, sample_file
from benchmarks.processes import memory_mb
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report, run
from components.iceberg_updater.committer_thread import CommitterThread
from components.iceberg_updater.refresh import IcebergRefresh
from components.lib.lake.iceberg import IcebergTables, Retention, open_catalog
from registry.connect import open_store
from registry.embedded_postgres import EmbeddedPostgres

_FILL = """
    INSERT INTO table_files (table_id, file_name, file_path, file_size, file_type, partition_path, row_count, checksum,
                             is_compressed, schema_version, column_stats, operation, created_at, modified_at)
    SELECT %(table)s, n || '.parquet', %(location)s || '/data/' || n || '.parquet', %(size)s, 'parquet', '', %(rows)s,
           %(checksum)s, true, 1, %(stats)s::json, 'insert', 0, 0
    FROM generate_series(1, %(count)s) n
"""


async def large_refresh_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(settings=SERVER) as server:
        few, many = report.pick(50_000, 5_000), report.pick(500_000, 15_000)
        small = await _refreshed(server, Path(name), few)
        large = await _refreshed(server, Path(name), many)
    report.add(
        "refresh_memory_growth",
        large["grown_mb"] / small["grown_mb"],
        f"peak memory over the idle process, of a refresh that adds {many:,} files to Iceberg and one that adds "
        f"{few:,}: {large['grown_mb']:.0f} over {small['grown_mb']:.0f} MB; {many / large['seconds']:,.0f} files/s",
        at_most=2.0,
    )
    report.add(
        "refresh_loop_ms",
        large["held_ms"],
        f"CPU time of the longest of {large['steps']:,.0f} steps of the event loop, 99.9 % took "
        f"{large['held_p999_ms']:.1f} ms",
        at_most=2.0,
    )


async def _refreshed(server: EmbeddedPostgres, directory: Path, files: int) -> dict[str, float]:
    url, store = await new_registry(server, f"files{files}")
    location = (directory / f"table{files}").as_uri()
    table = await store.create_table("bench", f"table{files}", location, SCHEMA.draft())
    await store.close()
    sample = sample_file(directory)
    values = {
        "table": table.id, "location": location, "size": sample.file_size, "rows": sample.row_count,
        "checksum": sample.checksum, "stats": sample.column_stats, "count": files,
    }  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FILL, values)
        connection.execute("ANALYZE")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_child, args=(url, theirs))
    process.start()
    theirs.close()
    found: dict[str, float] = await asyncio.to_thread(ours.recv)
    process.join()
    return found


def _child(url: str, parent: Connection) -> None:
    with FreezingCollector():  # as `astha run` does
        parent.send(asyncio.run(_refresh(url)))


async def _refresh(url: str) -> dict[str, float]:
    store = await open_store(url)
    tables = IcebergTables(open_catalog(url, LakeSettings()), "bench")
    thread = CommitterThread("refresh", tables, Retention(), timeout_s=600, probe_timeout_s=60)
    steps = _Steps()
    idle_mb, started = memory_mb()[0], time.perf_counter()
    with steps:
        async with store.consistent_read() as snapshot:
            result = await IcebergRefresh(store, thread).run(snapshot)
    seconds = time.perf_counter() - started
    assert not result.failed, result.failed
    await thread.close()
    tables.close()
    await store.close()
    held = sorted(steps.seconds)
    return {
        "grown_mb": memory_mb()[1] - idle_mb,
        "seconds": seconds,
        "steps": len(held),
        "held_ms": held[-1] * 1000,
        "held_p999_ms": held[int(len(held) * 0.999)] * 1000,
    }


class _Steps:
    """Records the CPU time of each step of the event loop while it is entered."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> _Steps:
        self._run = run_step = asyncio.Handle._run
        seconds = self.seconds

        def recorded(self: asyncio.Handle) -> None:
            before = time.thread_time()
            run_step(self)
            seconds.append(time.thread_time() - before)

        asyncio.Handle._run = recorded  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(run("large refreshes", large_refresh_figures))
