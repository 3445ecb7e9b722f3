"""Rows are sorted by packed numbers where those fit into 64 bits, and by their keys otherwise."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from components.lib.lake.files import sorting
from components.lib.lake.files.sorting import arrange, sorted_order
from components.lib.lake.schema.table_schema import TableSchema
from tests.lake import order_of, rows_of, table_schema

SMALLEST, LARGEST = -(2**63), 2**63 - 1
COLUMNS = Schema(NestedField(1, "n", LongType()), NestedField(2, "m", IntegerType()), NestedField(3, "at", LongType()))


def by(*how: str) -> TableSchema:
    return table_schema(
        COLUMNS, order=order_of(*((place + 1, IdentityTransform(), each) for place, each in enumerate(how)))
    )


def expected(rows: list[dict[str, Any]], *how: str) -> list[dict[str, Any]]:
    found = list(rows)
    for name, each in reversed(list(zip(("n", "m"), how, strict=False))):
        found.sort(key=lambda row: row[name] or 0, reverse="desc" in each)
        found.sort(key=lambda row: (row[name] is None) != ("first" in each))
    return found


@pytest.mark.parametrize(
    "how", [("asc first",), ("desc last",), ("asc last", "desc first"), ("desc first", "asc last")]
)
@pytest.mark.parametrize(
    "numbers",
    [
        [0, 1, 2, None],
        [-3, -2, -1],
        [LARGEST, LARGEST - 1, LARGEST - 2, None],
        [SMALLEST, SMALLEST + 1, None],
        [0, 2**40],
        [SMALLEST, -1, 0, 1, LARGEST, None],  # too wide to be packed
    ],
)
def test_any_range_is_sorted_and_equal_rows_keep_their_order(how: tuple[str, ...], numbers: list[int | None]) -> None:
    chance, schema = random.Random(1), by(*how)
    rows = [{"n": chance.choice(numbers), "m": chance.choice([None, -7, 0, 9]), "at": place} for place in range(300)]
    table = rows_of(schema, *rows)
    order = sorted_order(table, schema)
    assert order is not None
    assert arrange(table.columns, table.schema, order).to_pylist() == expected(rows, *how)


def test_wide_keys_are_not_packed() -> None:
    wide = rows_of(by("asc first"), {"n": LARGEST}, {"n": SMALLEST}, {"n": 0})
    narrow = rows_of(by("asc first"), {"n": LARGEST}, {"n": LARGEST - 5}, {"n": LARGEST - 9})
    assert sorting._packed(sorting.sort_keys(wide, by("asc first"))) is None
    assert sorting._packed(sorting.sort_keys(narrow, by("asc first"))) is not None


def test_rows_that_are_sorted_are_recognised() -> None:
    schema = by("asc first")
    assert sorted_order(rows_of(schema, {"n": None}, {"n": 1}, {"n": 1}, {"n": 2}), schema) is None


def test_columns_are_given_up_one_by_one() -> None:
    schema = by("desc last")
    table = rows_of(schema, {"n": 1, "m": 2, "at": 3}, {"n": 2, "m": 3, "at": 4})
    columns: list[pa.ChunkedArray] = table.columns
    order = sorted_order(table, schema)
    assert order is not None
    assert arrange(columns, table.schema, order).column("at").to_pylist() == [4, 3]
    assert columns == []
