"""What a table's size costs its next commit: one file more in a table with 1,000 files, and in one with a million.

The large table is filled in commits of many files, as a refresh does. Both tables are committed to in turn, so that a
disturbance of the machine affects both.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import msgspec

from astha.subscribers import LakeSettings
from benchmarks.lake.iceberg import SCHEMA, sample_file
from benchmarks.report import Report, run
from components.lib.lake.iceberg import IcebergTables, Retention, SnapshotChange, TableCommit, open_catalog
from registry.migrate import migrate
from registry.models import LakeTable, TableFile
from registry.position import Position

_FEW = 1_000
_PORTION = 50_000


async def growth_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        await asyncio.to_thread(_measure, report, Path(name), report.pick(1_000_000, 20_000), report.pick(150, 60))


def _measure(report: Report, directory: Path, many: int, commits: int) -> None:
    url = f"sqlite:///{directory / 'registry.db'}"
    migrate(url)
    tables = IcebergTables(open_catalog(url, LakeSettings()), "bench")
    sample = sample_file(directory)
    small, large = (_Table(tables, number, directory, sample) for number in (1, 2))
    started = perf_counter()
    small.add(_FEW)
    while large.files < many:
        large.add(min(_PORTION, many - large.files))
    report.say(f"a table of {many:,} files in {perf_counter() - started:.0f} s")
    few, lots = list[float](), list[float]()
    for _ in range(commits):
        few.append(small.add(1))
        lots.append(large.add(1))
    report.add(
        "many_files_commit_growth",
        median(lots) / median(few),
        f"one-file commit in a table of {many:,} files over one in a table of {_FEW:,}, medians of {commits}: "
        f"{_ms(median(lots))} over {_ms(median(few))}; means, with merges and expiry: {_ms(mean(lots))} over "
        f"{_ms(mean(few))}",
        at_most=2.0,
    )
    tables.close()
    tables = IcebergTables(open_catalog(url, LakeSettings()), "bench")
    first = {table.files: table.reopened(tables).add(1) for table in (small, large)}
    report.say("first commits of a new process: " + ", ".join(f"{_ms(spent)} ({n:,})" for n, spent in first.items()))
    tables.close()


class _Table:
    def __init__(self, tables: IcebergTables, number: int, directory: Path, sample: TableFile) -> None:
        location = (directory / f"table{number}").as_uri()
        self._table = LakeTable(number, "bench", f"table{number}", location, 0, 0, 0, 0, "active", 0, 0)
        self._tables = tables
        self._sample = sample
        self._position = 0
        self.files = 0
        tables.ensure(self._table, SCHEMA)

    def add(self, count: int) -> float:
        """Adds files in one commit, as the updater does. Returns its seconds."""
        path = f"{self._table.location}/data"
        files = [
            msgspec.structs.replace(self._sample, id=number, file_path=f"{path}/{number}.parquet")
            for number in range(self.files, self.files + count)
        ]
        position = Position(self._position + 1)

        def build(draft: TableCommit) -> None:
            draft.require_own()
            draft.add_snapshot(SnapshotChange(files), {1: SCHEMA}, position)
            draft.set_stamp(position)
            draft.retain(Retention())

        started = perf_counter()
        self._tables.commit(self._table, build)
        spent = perf_counter() - started
        self.files, self._position = self.files + count, position
        return spent

    def reopened(self, tables: IcebergTables) -> _Table:
        self._tables = tables
        return self


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(run("growth of tables", growth_figures))
