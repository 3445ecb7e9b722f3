"""A refresh of one lane while the others deliver: its rate against PostgreSQL's own COPY, and the others' latency."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

from benchmarks.pipeline.child import Answer
from benchmarks.pipeline.latency import Paced, p99, pace, paced
from benchmarks.pipeline.readers import DaemonReader, daemon
from benchmarks.pipeline.wal import Wal
from benchmarks.report import Report, percentile
from registry.embedded_postgres import EmbeddedPostgres

_TRANSACTION = 100_000


async def refresh_figures(report: Report, server: EmbeddedPostgres) -> None:
    wal = Wal(server, "refresh")
    rows, rounds = report.pick(2_000_000, 200_000), report.pick(2, 2)
    wal.write(rows, _TRANSACTION)
    wal.admin.execute("VACUUM (FREEZE, ANALYZE) segments")
    copies = [await asyncio.to_thread(_copy_s, wal) for _ in range(rounds)]
    seconds = report.pick(12, 2)
    alone: Paced = await paced(wal, seconds, lambda slot: daemon(wal, slot))
    refreshes: list[Answer] = []

    @contextmanager
    def refreshing(reader: DaemonReader) -> Iterator[None]:
        reader.wait_until_ready()
        stopped = threading.Event()
        thread = threading.Thread(target=_refresh, args=(reader, refreshes, rounds, stopped))
        thread.start()
        yield
        stopped.set()
        thread.join()

    beside = await paced(wal, seconds, lambda slot: daemon(wal, slot, refreshes=True), beside=refreshing)
    whole = [found for found in refreshes if found["rows"]]
    rate = median(found["rows"] / found["seconds"] for found in whole)
    bare = rows / median(copies)
    report.add(
        "refresh_rate_vs_copy",
        rate / bare,
        f"a component's refresh of {rows:,} rows, typed, at {pace([beside])}: {rate:,.0f} rows/s; COPY of the same "
        f"table to /dev/null on the server, alone: {bare:,.0f}",
        at_least=0.4,
    )
    late_ms = [late / 1000 for found in whole for late in found["late_us"]]
    report.add(
        "refresh_p99_ratio",
        percentile(late_ms, 0.99) / p99([alone]),
        f"commit to on_event of another lane during {len(whole)} refreshes ({len(late_ms):,} events): "
        f"{percentile(late_ms, 0.99):.2f} ms (p50 {percentile(late_ms, 0.5):.2f}) over {p99([alone]):.2f} ms without",
        at_most=2,
    )
    wal.close()


def _refresh(reader: DaemonReader, found: list[Answer], least: int, stopped: threading.Event) -> None:
    while len(found) < least or not stopped.is_set():
        found.append(reader.refresh())


def _copy_s(wal: Wal) -> float:
    started = perf_counter()
    wal.admin.execute("COPY segments TO '/dev/null'")
    return perf_counter() - started
