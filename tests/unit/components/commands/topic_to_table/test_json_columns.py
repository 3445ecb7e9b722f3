"""All at once or one by one: the same rows, and the same refusals."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
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

from components.commands.topic_to_table.json_columns import JsonColumns
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused
from tests.lake import table_schema

POINT = StructType(NestedField(20, "x", LongType()), NestedField(21, "label", StringType()))
SCHEMA = table_schema(
    Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "flag", BooleanType()),
        NestedField(3, "small", IntegerType()),
        NestedField(4, "single", FloatType()),
        NestedField(5, "double", DoubleType()),
        NestedField(6, "price", DecimalType(9, 2)),
        NestedField(7, "day", DateType()),
        NestedField(8, "local", TimestampType()),
        NestedField(9, "at", TimestamptzType()),
        NestedField(10, "name", StringType()),
        NestedField(11, "key", UUIDType()),
        NestedField(12, "scores", ListType(13, LongType(), element_required=False)),
        NestedField(14, "place", POINT),
    )
)
FULL = {
    "id": 1, "flag": True, "small": -3, "single": 1.5, "double": 2.5, "price": 1.25, "day": "2024-05-01",
    "local": "2024-05-01T12:00:00", "at": "2024-05-01T12:00:00+02:00", "name": "é \U0001f980 \u2028",
    "key": "00000000-0000-0000-0000-000000000005", "scores": [1, None], "place": {"x": 1, "label": "q"},
}  # fmt: skip


def values(*rows: object) -> pa.Array:
    return pa.array([row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows], pa.binary())


@pytest.fixture(scope="module")
def columns() -> JsonColumns:
    return JsonColumns(SCHEMA)


def test_every_type_is_read_at_once(columns: JsonColumns) -> None:
    given = values(FULL, {"id": 2}, {**FULL, "price": "3.5", "name": 'a"\n\\\u0000'}, b' \n{"id":\t3}\r\n')
    found = columns._at_once(given)
    assert found is not None
    rows = columns.rows(given)
    assert rows.schema.equals(SCHEMA.arrow())
    first, second, third, last = rows.to_pylist()
    assert first == {
        **FULL, "price": Decimal("1.25"), "day": date(2024, 5, 1), "local": datetime(2024, 5, 1, 12),
        "at": datetime(2024, 5, 1, 10, tzinfo=UTC), "key": UUID(int=5),
    }  # fmt: skip
    assert [name for name, value in second.items() if value is not None] == ["id"]
    assert (third["price"], third["name"], last["id"]) == (Decimal("3.50"), 'a"\n\\\u0000', 3)
    assert rows.equals(coerce(columns._one_by_one(given), SCHEMA))


@pytest.mark.parametrize(
    "bad",
    [
        b"", b" ", b"{", b"}", b"[]", b"1", b"null", b'"x"', b'{"id":1}{"id":2}', b'{"id":1} {"id":2}', b'{"id":1},',
        b'{"id":1}\n{"id":2}', b'{"id":"1"}', b'{"id":1.5}', b'{"id":1e400}', b'{"id":9223372036854775808}',
        b'{"id":true}', b"{}", b'{"id":null}', b'{"id":1,"more":2}', b'{"id":1,"name":"\xff"}',
        b'{"id":1,"name":"\\ud800"}', b'{"id":1,"name":5}', b'{"id":1,"double":NaN}', b'{"id":1,"double":Infinity}',
        b'{"id":1,"single":1e39}', b'{"id":1,"single":16777217}', b'{"id":1,"double":9007199254740993}',
        b'{"id":1,"price":1.255}', b'{"id":1,"price":12345678.25}', b'{"id":1,"small":3000000000}',
        b'{"id":1,"flag":1}', b'{"id":1,"day":"2024-13-01"}', b'{"id":1,"day":5}',
        b'{"id":1,"local":"2024-05-01T12:00:00Z"}', b'{"id":1,"at":"2024-05-01T12:00:00"}', b'{"id":1,"key":"5"}',
        b'{"id":1,"scores":[1.5]}', b'{"id":1,"scores":5}',
        b'{"id":1,"place":{"label":"q","z":1}}', b'{"id":1,"name":"a\nb"}', b"{'id':1}",
    ],
)  # fmt: skip
def test_a_value_that_is_no_row_is_refused_with_its_number(columns: JsonColumns, bad: bytes) -> None:
    given = values(FULL, {"id": 2}, bad, {"id": 4})
    with pytest.raises(RowsRefused) as refused:
        columns.rows(given)
    assert refused.value.row == 3


def test_a_null_is_no_row(columns: JsonColumns) -> None:
    with pytest.raises(RowsRefused, match="row 2: the value is null"):
        columns.rows(pa.array([b'{"id":1}', None], pa.binary()))


@pytest.mark.parametrize(
    "row",
    [
        b'{"id":1,"name":"NaN"}', b'{"id":1,"name":"Infinity"}', b'{"id":\n1}', b'{"id":1,"id":2}',
        b'{"id":1,"day":"20240501"}', b'{"id":1,"double":1}', b'{"id":1,"double":1e300}', b'{"id":1,"single":0.1}',
        b'{"id":1,"single":1e30}', b'{"id":1,"price":7}', b'{"id":1,"at":"2024-05-01T12:00Z"}', b'{"id":-0}',
        b'{"id":1,"scores":[]}', b'{"id":1,"place":null}',
    ],
)  # fmt: skip
def test_both_readers_agree(columns: JsonColumns, row: bytes) -> None:
    given = values(row, {"id": 5})
    assert columns.rows(given).equals(coerce(columns._one_by_one(given), SCHEMA))


def test_types_that_arrow_does_not_read_are_read_one_by_one() -> None:
    schema = table_schema(Schema(NestedField(1, "tags", MapType(2, StringType(), 3, LongType(), value_required=False))))
    columns = JsonColumns(schema)
    assert columns.rows(values({"tags": {"a": 1, "b": None}})).to_pylist() == [{"tags": [("a", 1), ("b", None)]}]


def test_required_fields_inside_of_missing_ones() -> None:
    inner = StructType(NestedField(2, "x", LongType()), NestedField(3, "label", StringType(), required=True))
    columns = JsonColumns(table_schema(Schema(NestedField(1, "place", inner))))
    good = [{"place": {"x": 1, "label": "q"}}, {"place": None}]
    assert columns.rows(values(*good)).to_pylist() == good
    with pytest.raises(RowsRefused) as refused:
        columns.rows(values(*good, {"place": {"x": 1}}))
    assert refused.value.row == 3


def test_nothing_is_no_rows(columns: JsonColumns) -> None:
    assert columns.rows(pa.array([], pa.binary())).num_rows == 0
