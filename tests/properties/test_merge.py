"""For any columns, versions and rows: a merge keeps all rows, in order, and writes right statistics."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.compactor.merge import merge
from components.lib.lake.files import engine_of
from components.lib.lake.files.sorting import sort
from components.lib.lake.schema.table_schema import TableSchema
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats
from tests.properties.lake_tables import Row, evolved, in_order, naive, rows, schemas, successors
from tests.unit.components.compactor.merge.groups import path_of, read, task, write

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def arrow(found: list[Row], schema: TableSchema) -> pa.Table:
    return pa.Table.from_pylist(found, schema=schema.arrow())


@few
@given(st.data())
def test_rows_are_sorted_as_iceberg_specifies(data: st.DataObject) -> None:
    schema = data.draw(schemas(ordered=True))
    found = data.draw(rows(schema, 12))
    assert naive(sort(arrow(found, schema), schema).to_pylist()) == naive(
        arrow(in_order(found, schema), schema).to_pylist()
    )


@few
@given(st.data())
def test_a_merge_keeps_all_rows(data: st.DataObject) -> None:
    first = data.draw(schemas(ordered=data.draw(st.booleans())))
    second = data.draw(successors(first))
    contents = [
        (schema, data.draw(rows(schema)))
        for schema in data.draw(st.lists(st.sampled_from([first, second]), min_size=1, max_size=4))
    ]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        inputs = [
            write(directory / f"{place}.parquet", arrow(found, schema), schema)
            for place, (schema, found) in enumerate(contents)
            if found
        ]
        if not inputs:
            return
        result = merge(
            task(
                directory,
                inputs,
                second,
                first,
                many=3,
                copy_above_bytes=0,
                target_bytes=data.draw(st.sampled_from([1 << 30, 1_000])),
            )
        )
        merged = read(result)
        expected = [
            evolved(row, schema.iceberg.fields, second.iceberg.fields)
            for schema, found in contents
            for row in in_order(found, schema)
        ]
        wanted = naive(arrow(in_order(expected, second), second).to_pylist())
        assert Counter(naive(merged.to_pylist())) == Counter(wanted)
        if second.order.fields:
            assert naive(merged.to_pylist()) == wanted
        for file in result.files:
            statistics = JsonText(file.column_stats or "")
            assert_as_the_engine_would(path_of(file.file_path), statistics, second, result.strategy)


def assert_as_the_engine_would(path: Path, found: JsonText, schema: TableSchema, strategy: str) -> None:
    """All but the size of a column: row groups and encodings may differ."""
    table = pq.ParquetFile(path).read()
    written = engine_of(schema).write(table, schema, io.BytesIO())
    ours = parse_json_as(found, dict[int, ColumnStats])
    theirs = parse_json_as(written.column_stats, dict[int, ColumnStats])

    def facts(stats: dict[int, ColumnStats]) -> dict[int, tuple[object, ...]]:
        return {
            key: (each.value_count, each.null_count, each.nan_count, each.lower, each.upper)
            for key, each in stats.items()
        }

    assert facts(ours) == facts(theirs), strategy
