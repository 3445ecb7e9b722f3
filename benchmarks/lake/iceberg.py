"""The cost of an Iceberg commit of one file, and its growth with the number of commits before it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import msgspec
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from astha.subscribers import LakeSettings
from benchmarks.report import Report, run
from components.lib.lake.files.parquet import ParquetEngine
from components.lib.lake.iceberg import IcebergTables, Retention, SnapshotChange, TableCommit, open_catalog
from components.lib.lake.schema.table_schema import TableSchema
from registry.migrate import migrate
from registry.models import LakeTable, TableFile
from registry.position import Position

_KINDS = (LongType(), StringType(), DoubleType())
SCHEMA = TableSchema(
    1,
    Schema(*(NestedField(number, f"c{number}", _KINDS[number % 3]) for number in range(1, 13))),
    UNPARTITIONED_PARTITION_SPEC,
    UNSORTED_SORT_ORDER,
)
COMMITS = 1_000
_NEIGHBOURS = 10
"""Neighbours on either side of a commit whose median is taken, so that one slow moment is not growth."""


async def commit_figures(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sample = sample_file(directory)
        ours = await asyncio.to_thread(_ours, directory, sample, COMMITS)
        report.say(f"{COMMITS:,} commits, {_ms(mean(ours))} each")
        few = report.pick(200, 60)
        stock = await asyncio.to_thread(_stock, directory, sample, few)
        report.say(f"{few} commits with PyIceberg's add_files, {_ms(mean(stock))} each")
    early, late = _around(ours, 10), _around(ours, COMMITS)
    report.add(
        "iceberg_commit_growth",
        late / early,
        f"the {COMMITS:,}th one-file commit over the 10th, medians of neighbours: {_ms(late)} over {_ms(early)}; "
        f"with all that merging and expiry cost, a commit takes {_ms(mean(ours[:100]))} in the first hundred and "
        f"{_ms(mean(ours[-100:]))} in the last; PyIceberg's add_files (without its check for duplicates): "
        f"{_ms(_around(stock, 10))} for the 10th, {_ms(_around(stock, few))} for the {few}th",
        at_most=1.5,
    )
    report.add(
        "iceberg_commit_vs_stock",
        _around(ours, few) / _around(stock, few),
        f"the {few}th one-file commit over the same of PyIceberg's add_files",
        at_most=1.0,
    )


def _ours(directory: Path, sample: TableFile, commits: int) -> list[float]:
    """Commits as the updater does, with stamp, retention and manifest merging."""
    url = f"sqlite:///{directory / 'registry.db'}"
    migrate(url)
    tables = IcebergTables(open_catalog(url, LakeSettings()), "bench")
    table = LakeTable(1, "bench", "ours", (directory / "ours").as_uri(), 0, 0, 0, 0, "active", 0, 0)
    tables.ensure(table, SCHEMA)
    seconds = []
    for number in range(commits):
        file = msgspec.structs.replace(sample, id=number, file_path=f"{table.location}/data/{number}.parquet")

        def build(draft: TableCommit, file: TableFile = file) -> None:
            draft.require_own()
            draft.add_snapshot(SnapshotChange([file]), {1: SCHEMA}, Position(file.id))
            draft.set_stamp(Position(file.id))
            draft.retain(Retention())

        started = perf_counter()
        tables.commit(table, build)
        seconds.append(perf_counter() - started)
    tables.close()
    return seconds


def _stock(directory: Path, sample: TableFile, commits: int) -> list[float]:
    catalog = SqlCatalog("stock", uri=f"sqlite:///{directory / 'stock.db'}", warehouse=(directory / "stock").as_uri())
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.stock", SCHEMA.iceberg)
    source = Path(sample.file_path.removeprefix("file://"))
    seconds = []
    for number in range(commits):
        copy = directory / f"stock-{number}.parquet"
        os.link(source, copy)
        started = perf_counter()
        table.add_files([copy.as_uri()], check_duplicate_files=False)
        seconds.append(perf_counter() - started)
    catalog.close()
    return seconds


def sample_file(directory: Path, schema: TableSchema = SCHEMA) -> TableFile:
    """Returns a file as the storage manager writes it."""
    path = directory / "sample.parquet"
    numbers = pa.array(range(100))
    rows = pa.table([numbers.cast(field.type) for field in schema.arrow()], schema=schema.arrow())
    with path.open("wb") as sink:
        written = ParquetEngine().write(rows, schema, sink)
    return TableFile(
        0, 1, path.name, path.as_uri(), written.size, "parquet", "", written.rows, written.checksum, True, 1,
        written.column_stats, "insert", None, 0, 0,
    )  # fmt: skip


def _around(seconds: list[float], place: int) -> float:
    return median(seconds[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    sys.exit(run("Iceberg commits", commit_figures))
