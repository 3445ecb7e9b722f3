"""Merges on a real S3 server, and their files read by Spark."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from astha.subscribers.context import LakeSettings
from components.compactor.merge import MergeTask, merge
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import join
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageUnavailable
from tests.lake import EVERYTHING, FULL_ROW, order_of, rows_of, table_schema
from tests.unit.components.compactor.merge.groups import path_of, task, write

# Without what plain Spark does not read: times and UUIDs.
READABLE = Schema(*(field for field in EVERYTHING.fields if field.name not in ("clock", "code", "key")))
PLAIN = table_schema(READABLE)
SORTED = table_schema(READABLE, order=order_of((13, IdentityTransform(), "asc first")))

_READ = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for path in sys.argv[1:]:
    found = spark.read.parquet(path)
    wanted = found.where("id >= 7").selectExpr("id", "name", "price", "place.label", "scores[0]", "tags['k']")
    rows = [[str(value) for value in row] for row in wanted.collect()]
    print("answer", json.dumps([found.count(), sorted(rows)]), flush=True)
spark.stop()
"""


def group(directory: Path, schema: TableSchema, strategy: str) -> MergeTask:
    inputs = [
        write(
            directory / f"{strategy}-{file}.parquet",
            rows_of(schema, *({**FULL_ROW, "id": file * 2 + row, "name": f"name {row}"} for row in range(2))),
            schema,
        )
        for file in range(5)
    ]
    made = task(directory, inputs, schema, strategy=strategy, copy_above_bytes=0)
    return msgspec.structs.replace(made, outputs=((directory / f"{strategy}.parquet").as_uri(),))


@pytest.mark.slow
def test_spark_reads_what_was_merged(tmp_path: Path) -> None:
    results = [
        merge(group(tmp_path, SORTED if name == "sort" else PLAIN, name)) for name in ("copy", "binpack", "sort")
    ]
    assert [result.strategy for result in results] == ["copy", "binpack", "sort"]
    paths = [str(path_of(result.files[0].file_path)) for result in results]
    run = subprocess.run(
        [sys.executable, "-c", _READ, *paths],
        capture_output=True, text=True, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    answers = [
        json.loads(line.removeprefix("answer ")) for line in run.stdout.splitlines() if line.startswith("answer")
    ]
    expected = [[str(number), f"name {number % 2}", "1.23", "q", "1.0", "1"] for number in (7, 8, 9)]
    assert answers == [[10, expected]] * 3, run.stderr


async def on_s3(made: MergeTask, lake: LakeSettings) -> MergeTask:
    objects, prefix = Objects(lake), join(lake.warehouse, made.operation_id)
    inputs = []
    for file in made.inputs:
        place = join(prefix, path_of(file.path).name)
        await objects.put(place, path_of(file.path).read_bytes())
        inputs.append(msgspec.structs.replace(file, path=place))
    return msgspec.structs.replace(made, inputs=tuple(inputs), outputs=(join(prefix, "out.parquet"),), lake=lake)


@pytest.mark.slow
async def test_groups_on_s3(tmp_path: Path, s3_lake: LakeSettings) -> None:
    for name, schema in (("copy", PLAIN), ("binpack", PLAIN), ("sort", SORTED)):
        made = await on_s3(group(tmp_path, schema, name), s3_lake)
        result = await asyncio.to_thread(merge, made)
        assert (result.strategy, result.proven) == (name, True)
        data = await Objects(s3_lake).get(result.files[0].file_path)
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
        assert sorted(rows.column("id").to_pylist()) == list(range(10))
        await Objects(s3_lake).delete_many([made.inputs[3].path])
        with pytest.raises(ObjectMissing, match=f"{name}-3"):
            await asyncio.to_thread(merge, made)
    nowhere = s3_lake.model_copy(update={"s3": s3_lake.s3.model_copy(update={"endpoint": "http://127.0.0.1:9"})})
    with pytest.raises(StorageUnavailable, match="reachable"):
        await asyncio.to_thread(merge, msgspec.structs.replace(made, lake=nowhere))
