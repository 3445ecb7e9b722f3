from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, rows_of, table_schema


def one(kind: Any, *, required: bool = False) -> Any:
    return table_schema(Schema(NestedField(1, "c", kind, required=required)))


def test_matching_data_is_not_copied() -> None:
    schema = table_schema(EVERYTHING)
    rows = rows_of(schema, FULL_ROW, EMPTY_ROW)
    fitted = coerce(rows, schema)
    assert fitted.column("name").chunk(0).buffers()[2].address == rows.column("name").chunk(0).buffers()[2].address


def test_columns_get_the_tables_order_and_field_ids() -> None:
    schema = table_schema()
    given = pa.table({"day": [date(2024, 5, 1)], "name": ["a"], "id": pa.array([1], pa.int8())})
    assert coerce(given, schema).schema.equals(schema.arrow(), check_metadata=True)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array([1, None], pa.int8()), LongType()),
        (pa.array([2**63], pa.uint64()).filter([False]), LongType()),
        (pa.array([5], pa.int64()), IntegerType()),
        (pa.array([1.5], pa.float32()), DoubleType()),
        (pa.array([7]), DoubleType()),
        (pa.array([7]), DecimalType(9, 2)),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), DecimalType(9, 4)),
        (pa.array(["a", "b"]).dictionary_encode(), StringType()),
        (pa.array([1_000], pa.timestamp("ns")), TimestampType()),
        (pa.array([1], pa.timestamp("s", "Europe/Berlin")), TimestamptzType()),
        (pa.array([b"a" * 16]), UUIDType()),
        (pa.array([b"abcd"]), FixedType(4)),
        (pa.nulls(2), LongType()),
        (pa.array([[1, None]], pa.list_(pa.int8())), ListType(2, LongType(), element_required=False)),
        (pa.array([{"b": 1}]), StructType(NestedField(2, "a", LongType()), NestedField(3, "b", LongType()))),
        (
            pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
            MapType(2, StringType(), 3, LongType(), value_required=True),
        ),
    ],
)
def test_lossless_casts_are_made(given: pa.Array, kind: Any) -> None:
    schema = one(kind)
    fitted = coerce(pa.table({"c": given}), schema).column("c")
    assert fitted.type == schema.arrow().field("c").type
    assert len(fitted) == len(given)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array(["1"]), LongType()),
        (pa.array([1]), StringType()),
        (pa.array([1.0]), LongType()),
        (pa.array([1.0]), FloatType()),
        (pa.array([True]), LongType()),
        (pa.array([datetime(2024, 1, 1)]), TimestamptzType()),
        (pa.array([datetime(2024, 1, 1, tzinfo=UTC)]), TimestampType()),
        (pa.array([b"a"]), StringType()),
        (pa.array([[1]]), LongType()),
        (pa.array([{"x": 1}]), StructType(NestedField(2, "a", LongType()))),
        (
            pa.array([{"a": 1}]),
            StructType(NestedField(2, "a", LongType()), NestedField(3, "b", LongType(), required=True)),
        ),
    ],
)
def test_types_with_another_meaning_are_refused(given: pa.Array, kind: Any) -> None:
    with pytest.raises(RowsRefused, match=r"^column 'c': is .* where the table has") as refused:
        coerce(pa.table({"c": given}), one(kind))
    assert (refused.value.row, refused.value.column) == (None, "c")


@pytest.mark.parametrize(
    ("given", "kind", "shown"),
    [
        (pa.array([1, 2**31, 2]), IntegerType(), "2147483648"),
        (pa.array([1, 2**53 + 1]), DoubleType(), "9007199254740993"),
        (pa.array([1, 10**9]), DecimalType(9, 2), "1000000000"),
        (pa.array([Decimal("1.00"), Decimal("1.23")]), DecimalType(9, 1), "1.23"),
        (pa.array([1_000, 1_001], pa.timestamp("ns")), TimestampType(), "1001"),
        (pa.array([b"abcd", b"abc"]), FixedType(4), "b'abc'"),
    ],
)
def test_lossy_values_are_named(given: pa.Array, kind: Any, shown: str) -> None:
    with pytest.raises(RowsRefused, match=r"does not fit into .* without loss") as refused:
        coerce(pa.table({"c": given}), one(kind), first_row=101)
    assert (refused.value.row, refused.value.column) == (102, "c")
    assert shown in refused.value.why


def test_columns_must_be_those_of_the_table() -> None:
    schema = table_schema()
    full = {"id": [1], "name": ["a"], "day": [date(2024, 5, 1)]}
    with pytest.raises(RowsRefused, match="column 'nme': is not in the table, which has id, name, day"):
        coerce(pa.table({**full, "nme": ["a"]}), schema)
    with pytest.raises(RowsRefused, match="column 'name': is missing"):
        coerce(pa.table({"id": [1], "day": full["day"]}), schema)
    with pytest.raises(RowsRefused, match="column 'id': is missing, and the table requires it"):
        coerce(pa.table({"name": ["a"]}), schema, fill_missing=True)
    with pytest.raises(RowsRefused, match="column 'id': appears twice"):
        coerce(pa.table([[1], [2], ["a"]], names=["id", "id", "name"]), schema)
    assert coerce(pa.table({"id": [1]}), schema, fill_missing=True).to_pylist() == [
        {"id": 1, "name": None, "day": None}
    ]


NESTED = Schema(
    NestedField(
        1,
        "place",
        StructType(
            NestedField(2, "x", LongType(), required=True),
            NestedField(3, "items", ListType(4, StringType(), element_required=True)),
            NestedField(5, "tags", MapType(6, StringType(), 7, LongType(), value_required=True)),
        ),
    ),
)


@pytest.mark.parametrize(
    ("bad", "column"),
    [
        ({"x": None}, "place.x"),
        ({"x": 1, "items": ["a", None]}, "place.items.element"),
        ({"x": 1, "tags": [("k", 1), ("l", None)]}, "place.tags.value"),
    ],
)
def test_nulls_inside_are_found_wherever_they_are_required(bad: dict[str, Any], column: str) -> None:
    schema = table_schema(NESTED)
    good = [{"place": {"x": 1, "items": ["a"], "tags": [("k", 1)]}}, {"place": None}, {"place": {"x": 2, "items": []}}]
    lax = pa.schema(
        [
            (
                "place",
                pa.struct(
                    [
                        ("x", pa.int64()),
                        ("items", pa.list_(pa.string())),
                        ("tags", pa.map_(pa.string(), pa.int64())),
                    ]
                ),
            )
        ]
    )
    assert coerce(pa.Table.from_pylist(good, schema=lax), schema).num_rows == 3
    rows = pa.Table.from_pylist([*good, {"place": bad}, *good], schema=lax)
    with pytest.raises(RowsRefused, match="is null, and the table requires a value") as refused:
        coerce(rows, schema)
    assert (refused.value.row, refused.value.column) == (4, column)
    with pytest.raises(RowsRefused) as refused:
        coerce(rows.slice(2), schema)
    assert refused.value.row == 2
    assert coerce(rows.slice(4), schema).num_rows == 3


def test_a_null_in_a_required_column_is_found_across_chunks() -> None:
    chunks = pa.chunked_array([[1, 2], [], [3, None, 5, None]])
    with pytest.raises(RowsRefused, match=r"^row 4, column 'c': is null"):
        coerce(pa.table({"c": chunks}), one(LongType(), required=True))
