"""What was found out about one file is used for the next one only if that has the same columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from components.compactor.merge import BadInput
from components.compactor.merge.projection import Projection
from tests.lake import table_schema

SCHEMA = table_schema(Schema(NestedField(1, "a", LongType(), required=True), NestedField(2, "b", StringType())))


def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


A, B = field("a", pa.int64(), 1), field("b", pa.large_string(), 2)
NARROW_A = field("a", pa.int32(), 1)
RENAMED_B = field("a", pa.large_string(), 2)  # a column may have the name that another one has in the table


def rows(*columns: tuple[pa.Field, list[object]]) -> pa.Table:
    fields = [each for each, _ in columns]
    return pa.table([pa.array(values, each.type) for each, values in columns], schema=pa.schema(fields))


def test_files_of_the_same_columns_one_after_the_other() -> None:
    projection = Projection(SCHEMA, SCHEMA)
    for number in range(3):
        found = projection.apply(rows((B, [f"{number}", None]), (A, [number, -number])), "f")
        assert found.schema.equals(SCHEMA.arrow(), check_metadata=True)
        assert found.to_pydict() == {"a": [number, -number], "b": [f"{number}", None]}


def test_files_of_different_columns_in_turn() -> None:
    projection = Projection(SCHEMA, SCHEMA)
    for _ in range(2):
        assert projection.apply(rows((A, [1]), (B, ["x"])), "f").to_pydict() == {"a": [1], "b": ["x"]}
        assert projection.apply(rows((NARROW_A, [2]), (B, ["y"])), "f").to_pydict() == {"a": [2], "b": ["y"]}
        assert projection.apply(rows((A, [3])), "f").to_pydict() == {"a": [3], "b": [None]}
        other_name = field("old", pa.int64(), 1)
        found = projection.apply(rows((RENAMED_B, ["z"]), (other_name, [4])), "f")
        assert found.to_pydict() == {"a": [4], "b": ["z"]}


def test_a_null_that_the_table_forbids_in_a_later_file() -> None:
    projection = Projection(SCHEMA, SCHEMA)
    projection.apply(rows((A, [1]), (B, ["x"])), "good")
    with pytest.raises(BadInput, match="later can't be merged: column a: 1 values are null"):
        projection.apply(rows((A, [None, 1]), (B, ["x", "y"])), "later")


def test_an_unknown_column_in_a_later_file() -> None:
    projection = Projection(SCHEMA, SCHEMA)
    known, unknown = pa.schema([A, B]), pa.schema([A, B, field("c", pa.int64(), 9)])
    for _ in range(2):
        assert projection.columns(known, "good") == ["a", "b"]
        with pytest.raises(BadInput, match="column 'c' with field id 9"):
            projection.columns(unknown, "later")


def test_dictionaries_are_kept() -> None:
    projection = Projection(SCHEMA, SCHEMA, frozenset({"b"}))
    as_dictionary = field("b", pa.dictionary(pa.int32(), pa.string()), 2)
    for _ in range(2):
        for column in (as_dictionary, B):
            found = projection.apply(rows((A, [1, 2]), (column, ["x", "x"])), "f")
            assert pa.types.is_dictionary(found.schema.field("b").type)
            assert found.to_pydict() == {"a": [1, 2], "b": ["x", "x"]}
