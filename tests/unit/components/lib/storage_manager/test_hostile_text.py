"""JSON lines and CSV that are meant to break the reader."""

from __future__ import annotations

import io
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, ListType, LongType, NestedField, StringType

from components.lib.storage_manager.errors import InsertError, RowsRefused
from components.lib.storage_manager.readers import Format, open_source
from components.lib.storage_manager.row_conversion import table_from_rows
from tests.lake import table_schema

SCHEMA = table_schema(
    Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "price", DecimalType(9, 2)),
        NestedField(3, "double", DoubleType()),
        NestedField(4, "single", FloatType()),
        NestedField(5, "name", StringType()),
        NestedField(6, "scores", ListType(7, LongType(), element_required=False)),
    )
)
FLAT = table_schema(Schema(NestedField(1, "id", LongType()), NestedField(2, "price", DecimalType(9, 2))))


def read(text: bytes, kind: Format = "json") -> pa.Table:
    schema = FLAT if kind == "csv" else SCHEMA
    return pa.concat_tables(open_source(io.BytesIO(text), None, kind, schema, fill_missing=True).batches)


def nested(depth: int, opening: str = "[", inner: str = "", closing: str = "]") -> str:
    return opening * depth + inner + closing * depth


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (f'"scores": {nested(1_200)}', "nested too deeply"),
        (f'"unknown": {nested(1_200)}', "nested too deeply"),
        (f'"scores": {nested(1_000_000)}', "nested too deeply"),
        (f'"scores": {"[" * 1_000_000}', "nested too deeply"),
        (f'"scores": {nested(1_200, chr(123) + chr(34) + "a" + chr(34) + ":", "1", chr(125))}', "nested too deeply"),
        (f'"scores": {nested(900)}', "is not a long"),
        ('"double": 1e400', "is not a double"),
        ('"single": -1e400', "is not a float"),
        ('"price": 1e400', "does not fit"),
        ('"price": 1e-41', "does not fit"),  # was 0.00
        ('"price": 1e-999999999', "does not fit"),  # ended the process
        ('"price": 1e999999999999999999999', "exponent"),
        (f'"price": "{"9" * 5_000}"', "does not fit"),
        ('"price": "NaN"', "does not fit"),
        (f'"price": 1.25{"0" * 60}', "does not fit"),  # was 0.00
        (f'"price": {"9" * 5_000}', "out of range"),
        (f'"double": {"9" * 400}', "does not fit"),
        (r'"name": "\ud800"', "not a JSON object"),
        ('"name": "a\0b"', "not a JSON object"),
    ],
)
def test_a_row_that_breaks_readers_is_refused_with_its_number(field: str, why: str) -> None:
    text = f'{{"id": 1}}\n\n{{"id": 2, {field}}}\n'.encode()
    with pytest.raises(RowsRefused, match=why) as caught:
        read(text)
    assert caught.value.row == 2


def test_unusual_but_valid_rows_are_read() -> None:
    text = rb'{"id": 1, "id": 2, "name": "a\u0000b", "price": 125e-2, "double": 1e-400}'
    (row,) = read(text).to_pylist()
    assert (row["id"], row["name"], row["price"], row["double"]) == (2, "a\0b", Decimal("1.25"), 0.0)


def test_hostile_python_objects_are_refused() -> None:
    deep: list[object] = []
    for _ in range(sys.getrecursionlimit() * 2):
        deep = [deep]
    for value in (Decimal("1e-999999999"), Decimal("1." + "0" * 60), Decimal("sNaN"), 10**5_000):
        with pytest.raises(RowsRefused, match="does not fit"):
            table_from_rows([{"id": 1, "price": value}], FLAT)
    with pytest.raises(RowsRefused, match="a list too large to show"):
        table_from_rows([{"id": 1, "price": deep}], FLAT)
    assert table_from_rows([{"id": 1, "price": Decimal("1.2500")}], FLAT)["price"].to_pylist() == [Decimal("1.25")]


@pytest.mark.parametrize(
    "price", ["1e-999999999", "1e-41", "1.25" + "0" * 60, "1.255", "abc", "12345678", "1e-99999999999999999999"]
)
def test_a_csv_decimal_out_of_range_is_refused(price: str) -> None:
    with pytest.raises(RowsRefused, match="does not fit") as caught:
        read(f"id,price\n1,1.25\n2,{price}\n".encode(), "csv")
    assert (caught.value.row, caught.value.column) == (2, "price")


def test_a_csv_header_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InsertError, match="the name of a column is not UTF-8"):
        read(b"id,pr\xa8ce\n1,1.25\n", "csv")


def test_a_line_without_an_end_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.lib.storage_manager.readers._LONGEST", 100)
    assert read(b'{"id": 1}\n' + b'{"id": 2}'.ljust(100)).num_rows == 2
    with pytest.raises(InsertError, match="line 2 has more than 100 bytes"):
        read(b'{"id": 1}\n' + b'{"id": 2}'.ljust(101))


def test_long_rows_are_read_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.lib.storage_manager.json_rows._BYTES", 30)
    text = b"".join(b'{"id": %d}\n' % number for number in range(7))
    tables = list(open_source(io.BytesIO(text), None, "json", SCHEMA, fill_missing=True).batches)
    assert [table["id"].to_pylist() for table in tables] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(RowsRefused, match="row 8"):
        read(text + b"7\n")


def test_csv_decimals_are_read() -> None:
    table = read(b'id,price\n1,1.25\n2,\n3,"-7"\n4, 125e-2\n5,1.2500\n', "csv")
    wanted = [Decimal("1.25"), None, Decimal("-7.00"), Decimal("1.25"), Decimal("1.25")]
    assert table["price"].to_pylist() == wanted
    assert table.schema.field("price").type == pa.decimal128(9, 2)
