"""The lake's figures: what inserting costs over writing the file, what its metadata cost, what an Iceberg commit costs
after many others, and how soon an insert is in Iceberg.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.lake.freshness import freshness_figures
from benchmarks.lake.iceberg import commit_figures
from benchmarks.lake.inserts import insert_overhead, insert_rate
from benchmarks.registries import SERVER
from benchmarks.report import Report, run
from registry.embedded_postgres import EmbeddedPostgres


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name:
        await insert_rate(report, Path(name))
        with EmbeddedPostgres(settings=SERVER) as server:
            await insert_overhead(report, Path(name), server)
    await commit_figures(report)
    await freshness_figures(report)


if __name__ == "__main__":
    sys.exit(run("lake", measure))
