"""Figures of the registry: bulk writes, offset lookups, and the cache. With ``--backend``, the same calls on each."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks.registries import SERVER
from benchmarks.registry.backends import BACKENDS, compare
from benchmarks.registry.memory import index_figures, memory_figures
from benchmarks.registry.parallel_writes import add_segments_vs_copy
from benchmarks.registry.reads import find_p99_growth, zipf_hit_rate
from benchmarks.registry.writes import bulk_insert_vs_copy, sqlite_bulk_vs_executemany
from benchmarks.report import Report, run
from registry.embedded_postgres import EmbeddedPostgres


def index_and_memory(report: Report) -> None:
    for name, value in index_figures(quick=report.quick).items():
        sequential = name == "index_sequential_vs_bisect"
        how = "walking forward, worse of offset by offset and segment by segment" if sequential else "at random offsets"
        report.add(
            name, value, f"SegmentIndex.lookup over bisect on a plain list, {how}", at_most=3 if sequential else 8
        )
    for name, value in memory_figures().items():
        report.add(name, value, "bytes an entry costs, its row and its own strings included (tracemalloc)")


async def measure(report: Report) -> None:
    index_and_memory(report)
    await sqlite_bulk_vs_executemany(report)
    with EmbeddedPostgres(settings=SERVER) as server:
        await bulk_insert_vs_copy(report, server)
        await add_segments_vs_copy(report, server)
        await find_p99_growth(report, server)
        await zipf_hit_rate(report, server)


def main() -> int:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--backend", action="append", choices=BACKENDS, help="measure the same calls on this backend; may be repeated"
    )
    chosen, _ = options.parse_known_args()
    if chosen.backend:
        return run("backends", partial(compare, backends=list(dict.fromkeys(chosen.backend))), options)
    return run("registry", measure, options)


if __name__ == "__main__":
    sys.exit(main())
