from __future__ import annotations

import gc
import hashlib
import io
from base64 import b64decode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField

from components.lib.lake.files import WrittenFile, engine_of
from components.lib.lake.files.parquet import ColumnHints, ParquetEngine, ParquetOptions
from components.lib.lake.files.statistics import upper_bytes, upper_text
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, order_of, rows_of, table_schema


def written(
    table: pa.Table, schema: TableSchema, options: ParquetOptions | None = None
) -> tuple[WrittenFile, bytes, dict[int, ColumnStats]]:
    sink = io.BytesIO()
    facts = ParquetEngine(options).write(table, schema, sink)
    return facts, sink.getvalue(), parse_json_as(facts.column_stats, dict[int, ColumnStats])


def bounds(stats: ColumnStats) -> tuple[bytes | None, bytes | None]:
    return (stats.lower and b64decode(stats.lower), stats.upper and b64decode(stats.upper))  # type: ignore[return-value]


def test_size_rows_and_checksum_match_the_file() -> None:
    schema = table_schema(EVERYTHING)
    facts, data, _ = written(rows_of(schema, FULL_ROW, EMPTY_ROW), schema)
    assert facts.size == len(data)
    assert facts.rows == 2
    assert facts.checksum == f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_every_type_is_read_back_with_its_field_ids() -> None:
    schema = table_schema(EVERYTHING)
    rows = rows_of(schema, FULL_ROW, EMPTY_ROW)
    _, data, _ = written(rows, schema)
    found = pq.ParquetFile(io.BytesIO(data))
    assert {column.path: column.physical_type for column in found.schema}["price"] == "INT32"
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in found.schema_arrow]
    assert ids == [field.field_id for field in EVERYTHING.fields]
    back, expected = found.read().to_pylist(), rows.to_pylist()
    for one in (back, expected):
        assert str(one[0].pop("double")) == "nan"
        assert str(one[0]["scores"].pop(1)) == "nan"
    assert back == expected


@pytest.mark.parametrize("row_group_rows", [1, 1_000])
def test_statistics_equal_those_of_pyiceberg(row_group_rows: int) -> None:
    """Compares with PyIceberg's reading of the footer, which lacks only NaN counts."""
    schema = table_schema(EVERYTHING)
    other = {**FULL_ROW, "id": -7, "name": "a", "raw": b"a", "double": 2.5, "amount": 3, "huge": 12}
    _, data, found = written(
        rows_of(schema, FULL_ROW, EMPTY_ROW, other), schema, ParquetOptions(row_group_rows=row_group_rows)
    )
    theirs = data_file_statistics_from_parquet_metadata(
        pq.ParquetFile(io.BytesIO(data)).metadata,
        compute_statistics_plan(EVERYTHING, {}),
        parquet_path_to_id_mapping(EVERYTHING),
    )
    assert {key: stats.value_count for key, stats in found.items()} == theirs.value_counts
    assert {key: stats.null_count for key, stats in found.items()} == theirs.null_value_counts
    assert {key: stats.size_bytes for key, stats in found.items()} == theirs.column_sizes
    for key, aggregate in theirs.column_aggregates.items():
        if key in (18, 23, 24):  # inside a list and a map
            assert bounds(found[key]) == (None, None)
        else:
            assert bounds(found[key]) == (aggregate.min_as_bytes(), aggregate.max_as_bytes()), key


def test_nans_are_counted_at_every_depth() -> None:
    schema = table_schema(EVERYTHING)
    _, _, found = written(rows_of(schema, FULL_ROW, EMPTY_ROW, {"id": 3, "place": {"x": float("nan")}}), schema)
    counts = {key: stats.nan_count for key, stats in found.items() if stats.nan_count is not None}
    assert counts == {4: 0, 5: 1, 18: 1, 20: 1}
    assert bounds(found[5]) == (None, None)  # nothing else is in it
    assert bounds(found[20])[0] == b"\x00" * 7 + b"\x80"


def test_a_value_too_long_for_a_bound_affects_only_its_column() -> None:
    schema = table_schema()
    _, _, found = written(rows_of(schema, {"id": 1, "name": "x" * 5_000}, {"id": 2, "name": "y"}), schema)
    assert bounds(found[2]) == (None, None)
    assert bounds(found[1])[1] == to_bytes(LongType(), 2)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("short", "short"),
        ("x" * 16, "x" * 16),
        ("x" * 17, "x" * 15 + "y"),
        ("x" * 15 + "\U0010ffff" * 2, "x" * 14 + "y"),
        ("x" * 15 + "\ud7ff" + "z", "x" * 15 + "\ue000"),
        ("\U0010ffff" * 17, None),
    ],
)
def test_upper_bounds_of_text_are_rounded_up(text: str, bound: str | None) -> None:
    found = upper_text(text.encode())
    assert found == (None if bound is None else bound.encode())
    assert found is None or found >= text.encode()


def test_upper_bounds_of_bytes_are_rounded_up() -> None:
    assert upper_bytes(b"a" * 16) == b"a" * 16
    assert upper_bytes(b"a" * 17) == b"a" * 15 + b"b"
    assert upper_bytes(b"a" + b"\xff" * 16) == b"b"
    assert upper_bytes(b"\xff" * 17) is None


def test_rows_are_sorted_and_the_footer_says_so() -> None:
    schema = table_schema(order=order_of((2, IdentityTransform(), "asc first"), (1, IdentityTransform(), "desc last")))
    rows = rows_of(schema, {"id": 1, "name": "b"}, {"id": 2, "name": "a"}, {"id": 3, "name": "a"}, {"id": 4})
    _, data, _ = written(rows, schema)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.read().column("id").to_pylist() == [4, 3, 2, 1]
    assert file.metadata.row_group(0).sorting_columns == (
        pq.SortingColumn(1, descending=False, nulls_first=True),
        pq.SortingColumn(0, descending=True, nulls_first=False),
    )


def test_fields_after_a_transform_still_sort() -> None:
    schema = table_schema(order=order_of((2, TruncateTransform(1), "asc first"), (1, IdentityTransform(), "asc first")))
    rows = rows_of(schema, {"id": 2, "name": "aa"}, {"id": 1, "name": "az"}, {"id": 0, "name": "b"})
    _, data, _ = written(rows, schema)
    assert pq.read_table(io.BytesIO(data)).column("id").to_pylist() == [1, 2, 0]


def test_nans_and_zeros_sort_as_iceberg_specifies() -> None:
    schema = table_schema(
        Schema(NestedField(1, "v", DoubleType())), order=order_of((1, IdentityTransform(), "desc last"))
    )
    rows = rows_of(schema, {"v": 1.0}, {"v": None}, {"v": float("nan")}, {"v": 2.0})
    _, data, _ = written(rows, schema)
    assert [str(v) for v in pq.read_table(io.BytesIO(data)).column("v").to_pylist()] == ["nan", "2.0", "1.0", "None"]


def test_orders_by_fields_of_structs_uuids_and_buckets() -> None:
    schema = table_schema(
        EVERYTHING,
        order=order_of(
            (21, IdentityTransform(), "asc first"),
            (16, IdentityTransform(), "desc last"),
            (1, BucketTransform(4), "asc first"),
            (12, DayTransform(), "asc first"),
        ),
    )
    rows = rows_of(
        schema,
        {**FULL_ROW, "id": 1, "place": {"label": "b"}},
        {**FULL_ROW, "id": 2, "place": {"label": "a"}},
        {"id": 3, "place": {"label": "a"}},
        {"id": 4},
    )
    _, data, _ = written(rows, schema)
    assert pq.read_table(io.BytesIO(data)).column("id").to_pylist() == [4, 2, 3, 1]


@pytest.mark.parametrize("good", [0, 1, 40, 83, 84, 85])  # of 86
def test_a_storage_failure_at_any_write_is_raised_once(good: int) -> None:
    """No object is left that fails again when it is garbage collected: pytest would report that."""

    class Failing(io.BytesIO):
        writes = 0

        def write(self, data: object, /) -> int:
            self.writes += 1
            if self.writes > good:
                raise OSError("no space left")
            return super().write(data)  # type: ignore[arg-type]  # bytes, from Arrow

    schema = table_schema(EVERYTHING)
    with pytest.raises(OSError, match="no space left"):
        ParquetEngine().write(rows_of(schema, FULL_ROW), schema, Failing())
    gc.collect()


def test_options_come_from_the_table() -> None:
    schema = table_schema(compression="gzip")
    engine = engine_of(schema, JsonText('{"compression_level":9,"row_group_rows":1}'))
    sink = io.BytesIO()
    engine.write(rows_of(schema, {"id": 1}, {"id": 2}), schema, sink)
    footer = pq.ParquetFile(sink).metadata
    assert footer.num_row_groups == 2
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert engine.compressed
    assert not engine_of(table_schema(compression="none")).compressed


@pytest.mark.parametrize(
    ("schema", "config", "why"),
    [
        (table_schema(compression="rar"), "{}", "compression"),
        (table_schema(), '{"rowgroup":1}', "rowgroup"),
        (table_schema(), "[]", "not an object"),
        (table_schema(format="orc"), "{}", "'orc' has no engine: use one of parquet, json"),
    ],
)
def test_invalid_options_are_refused(schema: TableSchema, config: str, why: str) -> None:
    with pytest.raises(SchemaProblem, match=why):
        engine_of(schema, JsonText(config))


@pytest.mark.parametrize(
    ("value_bytes", "rows"), [(None, 1_024), (0, 8_192), (128, 8_192), (256, 4_096), (10**6, 1_024)]
)
def test_fewer_large_values_are_encoded_at_a_time(value_bytes: int | None, rows: int) -> None:
    assert ColumnHints(value_bytes=value_bytes).batch_rows == rows


def test_the_bytes_do_not_depend_on_the_rows_encoded_at_a_time() -> None:
    schema = table_schema(Schema(NestedField(1, "a", LongType()), NestedField(2, "b", DoubleType())))
    table = pa.table([pa.array(range(50_000)), pa.array([float(n % 7) for n in range(50_000)])], schema=schema.arrow())
    found = []
    for value_bytes in (None, 8):
        sink = io.BytesIO()
        with ParquetEngine().open(schema, sink, ColumnHints(value_bytes=value_bytes)) as writer:
            writer.write(table)
        found.append(sink.getvalue())
    assert found[0] == found[1]
