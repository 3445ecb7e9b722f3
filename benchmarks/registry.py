"""The registry's figures: writing in bulk, finding offsets, and what memory saves."""

from __future__ import annotations

import sys

from benchmarks.registries import SERVER
from benchmarks.registry_reads import find_p99_growth, zipf_hit_rate
from benchmarks.registry_writes import bulk_insert_vs_copy, sqlite_bulk_vs_executemany
from benchmarks.report import Report, run
from registry.embedded import EmbeddedPostgres


async def measure(report: Report) -> None:
    await sqlite_bulk_vs_executemany(report)
    with EmbeddedPostgres(settings=SERVER) as server:
        await bulk_insert_vs_copy(report, server)
        await find_p99_growth(report, server)
        await zipf_hit_rate(report, server)


if __name__ == "__main__":
    sys.exit(run("registry", measure))
