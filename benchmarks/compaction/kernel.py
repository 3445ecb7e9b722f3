"""The cost of merging one group without Spark: CPU seconds per phase, for each strategy.

    python -m benchmarks.compaction.kernel [FILES]

No figure has a goal here, so `make bench` leaves it out: it is for work on the merge.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from components.compactor.merge import MergeInput, MergeTask, Strategy, merge
from components.lib.lake.files import engine_of
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import TableMetadata

ROWS = 10_000  # a file
ROUNDS = 3
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "customer", LongType()),
    NestedField(4, "amount", DecimalType(12, 2)),
    NestedField(5, "quantity", IntegerType()),
    NestedField(6, "price", DoubleType()),
    NestedField(7, "status", StringType()),
    NestedField(8, "country", StringType()),
    NestedField(9, "note", StringType()),
    NestedField(10, "paid", BooleanType()),
)
UNSORTED = TableSchema(1, COLUMNS, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)
BY_ID = TableSchema(
    1,
    COLUMNS,
    UNPARTITIONED_PARTITION_SPEC,
    SortOrder(SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)),
)


def orders(rows: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    statuses = np.array(["new", "paid", "shipped", "done", "returned"])
    columns = [
        pa.array(chance.integers(0, 10_000_000, rows)),
        pa.array(1_700_000_000_000_000 + chance.integers(0, 86_400_000_000, rows)).cast(pa.timestamp("us", "UTC")),
        pa.array(chance.integers(0, 100_000, rows)),
        pa.array(chance.integers(0, 10_000, rows).astype(np.int32)).cast(pa.decimal128(12, 2)),
        pa.array(chance.integers(1, 100, rows).astype(np.int32)),
        pa.array(np.round(chance.random(rows) * 1_000, 2)),
        pa.array(statuses[chance.integers(0, 5, rows)].tolist(), pa.large_string()),
        pa.array([f"C{number:02}" for number in chance.integers(0, 50, rows)], pa.large_string()),
        pa.array([f"note {number}" for number in chance.integers(0, 1_000_000, rows)], pa.large_string()),
        pa.array(chance.random(rows) < 0.1),
    ]
    return pa.table(columns, schema=UNSORTED.arrow())


def write_group(directory: Path, schema: TableSchema, files: int) -> list[MergeInput]:
    engine, found = engine_of(schema), []
    for number in range(files):
        path = directory / f"{uuid4().hex}.parquet"
        with path.open("wb") as sink:
            written = engine.write(orders(ROWS, number), schema, sink)
        found.append(MergeInput(path.as_uri(), written.size, ROWS, 1, written.column_stats, written.checksum))
    return found


def task_of(directory: Path, schema: TableSchema, inputs: list[MergeInput], strategy: Strategy) -> MergeTask:
    draft = schema.draft()
    version = TableMetadata(
        1, 1, 1, draft.schema, draft.storage_engine, draft.engine_config, draft.format, draft.compression,
        draft.partition_by, draft.sort_by, draft.properties, 0, 0, 0,
    )  # fmt: skip
    return MergeTask(
        operation_id="bench",
        table="bench.orders",
        partition_path="",
        inputs=tuple(inputs),
        outputs=tuple((directory / f"merged-{number}.parquet").as_uri() for number in range(4)),
        versions=(version,),
        strategy=strategy,
        memory_bytes=4 << 30,
    )


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 250
    print(f"{files} files of {ROWS:,} rows, {len(COLUMNS.fields)} columns; load {os.getloadavg()[0]:.1f}")
    cases: list[tuple[Strategy, TableSchema]] = [("copy", UNSORTED), ("binpack", UNSORTED), ("sort", BY_ID)]
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name:
        for strategy, schema in cases:
            task = task_of(Path(name), schema, write_group(Path(name), schema, files), strategy)
            for _ in range(ROUNDS):
                start, cpu = time.perf_counter(), time.process_time()
                result = merge(task, clock=time.process_time)
                cpu, wall = time.process_time() - cpu, time.perf_counter() - start
                phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result.seconds.items())
                print(
                    f"{result.strategy:8} {cpu:5.2f} CPU s, {wall:5.2f} s ({phases}); "
                    f"{result.bytes_read >> 20} -> {result.bytes_written >> 20} MiB"
                )


if __name__ == "__main__":
    main()
