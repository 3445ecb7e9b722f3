from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType

from components.compactor.merge import MergeInput, merge
from components.lib.lake.files import engine_of
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.output_streams import checksum_of
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats
from tests.lake import EVERYTHING, FULL_ROW, rows_of, table_schema
from tests.unit.components.compactor.merge.groups import path_of, read, task, write

SCHEMA = table_schema(
    Schema(
        NestedField(1, "n", LongType(), required=True),
        NestedField(2, "x", DoubleType()),
        NestedField(3, "text", StringType()),
        NestedField(4, "list", ListType(5, DoubleType(), element_required=False)),
    )
)
GROUPS_OF_100 = JsonText('{"row_group_rows":100}')


def table(seed: int, rows: int = 250) -> pa.Table:
    chance = np.random.default_rng(seed)
    numbers = [float("nan") if value < 0.1 else value for value in chance.random(rows)]
    return pa.table(
        [
            pa.array(chance.integers(-(2**60), 2**60, rows)),
            pa.array([None if value > 0.9 else value for value in numbers]),
            pa.array([None if seed == 1 else f"{seed} {'x' * (value % 30)}" for value in range(rows)]),
            pa.array([numbers[:length] for length in chance.integers(0, 4, rows)]),
        ],
        names=SCHEMA.arrow().names,
    ).cast(SCHEMA.arrow())


def group(directory: Path, schema: TableSchema = SCHEMA, **rest: Any) -> list[MergeInput]:
    return [
        write(directory / f"in-{seed}.parquet", table(seed), schema, engine_config=GROUPS_OF_100, **rest)
        for seed in range(4)
    ]


def facts(stats: JsonText | None) -> dict[int, tuple[object, ...]]:
    assert stats is not None
    found = parse_json_as(stats, dict[int, ColumnStats])
    return {
        key: (each.value_count, each.null_count, each.nan_count, each.lower, each.upper) for key, each in found.items()
    }


@pytest.mark.parametrize("statistics", [True, False])
def test_row_groups_are_kept_and_statistics_are_those_of_a_new_file(tmp_path: Path, statistics: bool) -> None:
    inputs = group(tmp_path, statistics=statistics)
    result = merge(task(tmp_path, inputs, SCHEMA, copy_above_bytes=0))
    assert (result.strategy, result.proven) == ("copy", True)
    (file,) = result.files
    footer = pq.read_metadata(path_of(file.file_path))
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    assert [each.num_rows for each in groups] == [100, 100, 50] * 4
    rows = pa.concat_tables([table(seed) for seed in range(4)])
    assert repr(read(result).to_pylist()) == repr(rows.to_pylist())
    assert facts(file.column_stats) == facts(engine_of(SCHEMA).write(rows, SCHEMA, io.BytesIO()).column_stats)
    assert file.column_stats is not None
    sizes = {key: each.size_bytes for key, each in parse_json_as(file.column_stats, dict[int, ColumnStats]).items()}
    assert list(sizes.values()) == [
        sum(each.column(place).total_compressed_size for each in groups) for place in range(4)
    ]


def test_other_readers_see_the_same(tmp_path: Path) -> None:
    """Reads each row group by itself, too, to check all offsets."""
    inputs = group(tmp_path)
    (file,) = merge(task(tmp_path, inputs, SCHEMA, copy_above_bytes=0)).files
    path = path_of(file.file_path)
    query = "select n, x, text, list from read_parquet({}) order by n, text"
    ours = duckdb.sql(query.format(f"'{path}'")).fetchall()
    theirs = duckdb.sql(query.format([str(path_of(each.path)) for each in inputs])).fetchall()
    assert repr(ours) == repr(theirs)
    skipping = duckdb.sql(f"select count(*) from '{path}' where n > {2**59}").fetchone()
    assert skipping == (sum(row[0] > 2**59 for row in ours),)
    source = pq.ParquetFile(path, page_checksum_verification=True)
    assert source.read_row_group(5).column("n").to_pylist() == table(1).column("n").to_pylist()[200:]
    assert [field.metadata for field in source.schema_arrow] == [field.metadata for field in SCHEMA.arrow()]


def test_indexes_and_filters_are_not_copied(tmp_path: Path) -> None:
    inputs = []
    for seed in range(2):
        path = tmp_path / f"in-{seed}.parquet"
        pq.write_table(
            table(seed), path, compression="zstd", row_group_size=100, write_page_index=True, write_page_checksum=True,
            bloom_filter_options={"text": True}, store_decimal_as_integer=True,
        )  # fmt: skip
        data = path.read_bytes()
        inputs.append(MergeInput(path.as_uri(), len(data), 250, 1, None, checksum_of(data)))
    before = pq.read_metadata(path_of(inputs[0].path)).row_group(0).column(2)
    assert before.has_column_index
    result = merge(task(tmp_path, inputs, SCHEMA, copy_above_bytes=0))
    assert result.strategy == "copy", result.why
    source = pq.ParquetFile(path_of(result.files[0].file_path), page_checksum_verification=True)
    chunk = source.metadata.row_group(3).column(2)
    assert (chunk.has_column_index, chunk.has_offset_index, chunk.bloom_filter_offset) == (False, False, None)
    assert repr(source.read().to_pylist()) == repr(pa.concat_tables([table(0), table(1)]).to_pylist())


def test_every_type_is_copied(tmp_path: Path) -> None:
    schema = table_schema(EVERYTHING)
    inputs = [write(tmp_path / f"in-{n}.parquet", rows_of(schema, {**FULL_ROW, "id": n}), schema) for n in range(20)]
    result = merge(task(tmp_path, inputs, schema, copy_above_bytes=0))
    assert result.strategy == "copy"
    assert read(result).column("id").to_pylist() == list(range(20))


def _renamed() -> TableSchema:
    rest = SCHEMA.iceberg.fields[1:]
    return dataclasses.replace(SCHEMA, version=2, iceberg=Schema(NestedField(1, "m", LongType(), required=True), *rest))


@pytest.mark.parametrize(
    ("schema", "options", "why"),
    [
        (SCHEMA, {}, "row groups of [0-9,]+ bytes on average are smaller than 262,144"),
        (_renamed(), {"copy_above_bytes": 0}, r"in-0\.parquet has other columns or types"),
        (
            dataclasses.replace(SCHEMA, version=2, compression="gzip"),
            {"copy_above_bytes": 0},
            "compressed with ZSTD.*with GZIP",
        ),
    ],
)
def test_where_rows_are_packed_instead(tmp_path: Path, schema: TableSchema, options: dict[str, Any], why: str) -> None:
    result = merge(task(tmp_path, group(tmp_path), schema, SCHEMA, **options))
    assert result.strategy == "binpack"
    assert read(result).num_rows == 1_000
    assert re.search(why, result.why)


def test_a_version_that_changed_no_column_is_no_reason_to_decode(tmp_path: Path) -> None:
    later = dataclasses.replace(SCHEMA, version=2)
    result = merge(task(tmp_path, group(tmp_path), later, SCHEMA, copy_above_bytes=0))
    assert (result.strategy, result.files[0].schema_version) == ("copy", 2)


def test_files_of_other_writers_are_decoded(tmp_path: Path) -> None:
    inputs = group(tmp_path)
    path = path_of(inputs[2].path)
    data = path.read_bytes().replace(b"parquet-cpp-arrow version", b"parquet-mr  1.2.3 version")
    path.write_bytes(data)
    inputs[2] = msgspec.structs.replace(inputs[2], checksum=None)
    result = merge(task(tmp_path, inputs, SCHEMA, copy_above_bytes=0))
    assert (result.strategy, result.why) == (
        "binpack",
        f"rows are packed: {inputs[2].path} was written by another program",
    )
