"""The lake's figures: what inserting costs over writing the file, and what its metadata cost."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.lake_inserts import insert_overhead, insert_rate
from benchmarks.registries import SERVER
from benchmarks.report import Report, run
from registry.embedded import EmbeddedPostgres


async def measure(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name:
        await insert_rate(report, Path(name))
        with EmbeddedPostgres(settings=SERVER) as server:
            await insert_overhead(report, Path(name), server)


if __name__ == "__main__":
    sys.exit(run("lake", measure))
