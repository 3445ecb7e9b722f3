"""Small files to compact: written once, linked into as many tables as are needed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from components.lib.lake.files.parquet import ParquetEngine
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import canonical
from registry.inputs import FileDraft

ROWS = 10_000
"""Rows per file, of ten columns."""
PARTITIONS = 4

_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", IntegerType()),
    NestedField(3, "customer", LongType()),
    NestedField(4, "amount", DoubleType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "status", StringType()),
    NestedField(7, "city", StringType()),
    NestedField(8, "quantity", IntegerType()),
    NestedField(9, "paid", BooleanType()),
    NestedField(10, "reference", StringType()),
)
_BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
UNSORTED = TableSchema(1, _SCHEMA, _BY_REGION, UNSORTED_SORT_ORDER)
SORTED = TableSchema(1, _SCHEMA, _BY_REGION, SortOrder(SortField(1, IdentityTransform())))

_START_US = 1_714_521_600_000_000  # 2024-05-01
_DISTINCT = 40
"""Files of different content; the others are copies with other numbers."""


class SmallFiles:
    """``count`` files in `PARTITIONS` partitions, each sorted by id as inserts into a sorted table leave them."""

    def __init__(self, directory: Path, count: int, distinct: int = _DISTINCT) -> None:
        self._directory = directory
        self._drafts: list[FileDraft] = []
        directory.mkdir(parents=True)
        engine = ParquetEngine()
        for number in range(min(count, distinct)):
            region = number % PARTITIONS
            path = directory / f"{number}.parquet"
            with path.open("wb") as sink:
                written = engine.write(_rows(number, region), SORTED, sink)
            self._drafts.append(
                FileDraft(
                    file_path=path.as_uri(),
                    file_size=written.size,
                    row_count=written.rows,
                    schema_version=1,
                    partition_path=f"region={region}",
                    checksum=written.checksum,
                    column_stats=written.column_stats,
                )
            )
        self.count = count

    @property
    def size(self) -> int:
        return sum(self._drafts[number % len(self._drafts)].file_size for number in range(self.count))

    @property
    def rows(self) -> int:
        return self.count * ROWS

    def link(self, location: str, count: int | None = None, every: int = 1) -> list[FileDraft]:
        """Returns the files as rows of a table at ``location``, a file URI; ``every`` fourth is of one partition."""
        linked = []
        for number in range(0, (self.count if count is None else count) * every, every):
            draft = self._drafts[number % len(self._drafts)]
            path = Path(location.removeprefix("file://")) / "data" / draft.partition_path / f"{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(draft.file_path.removeprefix("file://"), path)
            linked.append(msgspec.structs.replace(draft, file_path=canonical(path)))
        return linked


def _rows(seed: int, region: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    statuses, cities = np.array(["new", "paid", "sent", "returned"]), np.array([f"city-{each}" for each in range(300)])
    columns = [
        np.sort(chance.integers(0, 10**9, ROWS)),
        np.full(ROWS, region),
        chance.integers(0, 100_000, ROWS),
        np.round(chance.random(ROWS) * 1_000, 2),
        _START_US + 1_000 * chance.integers(0, 10**10, ROWS),
        statuses[chance.integers(0, len(statuses), ROWS)].tolist(),
        cities[chance.integers(0, len(cities), ROWS)].tolist(),
        chance.integers(0, 100, ROWS),
        chance.random(ROWS) < 0.5,
        [f"{each:016x}" for each in chance.integers(0, 2**63, ROWS).tolist()],
    ]
    arrow = SORTED.arrow()
    return pa.table([pa.array(values).cast(kind) for values, kind in zip(columns, arrow.types, strict=True)], arrow)
