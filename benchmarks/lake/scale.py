"""The lake at scale: a million files in a table, a refresh of many files, ten thousand tables."""

from __future__ import annotations

import sys

from benchmarks.lake.growth import growth_figures
from benchmarks.lake.large_refresh import large_refresh_figures
from benchmarks.lake.many_tables import table_figures
from benchmarks.report import Report, run


async def scale_figures(report: Report) -> None:
    await growth_figures(report)
    await large_refresh_figures(report)
    await table_figures(report)


if __name__ == "__main__":
    sys.exit(run("lake at scale", scale_figures))
