from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from components.lib.storage_manager.errors import RowsRefused
from components.lib.storage_manager.row_conversion import table_from_rows
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, table_schema

SCHEMA = table_schema(EVERYTHING)
NULLS: dict[str, Any] = {**dict.fromkeys(FULL_ROW), **EMPTY_ROW}


def test_every_type() -> None:
    full, nulls = table_from_rows([FULL_ROW, NULLS], SCHEMA).to_pylist()
    assert nulls == NULLS
    assert str(full.pop("double")) == "nan"
    assert str(full["scores"].pop(1)) == "nan"
    expected = {**FULL_ROW, "scores": [1.0, None]}
    del expected["double"]
    assert full == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", 1.0), ("id", True), ("id", "1"), ("id", 2**63), ("flag", 1), ("small", 2**31), ("small", Decimal(1)),
        ("single", "1"), ("single", 1e300), ("double", True), ("double", 2**53 + 1), ("price", 1.5), ("price", "1"),
        ("price", Decimal("1.234")), ("price", 10**9), ("day", datetime(2024, 1, 1)), ("day", 5), ("clock", "12:00"),
        ("clock", time(1, tzinfo=UTC)), ("local", date(2024, 1, 1)), ("local", datetime(2024, 1, 1, tzinfo=UTC)),
        ("at", datetime(2024, 1, 1)), ("at", 5), ("name", b"a"), ("name", 5), ("name", "\ud800"), ("raw", "a"),
        ("code", b"abc"), ("key", "no uuid"), ("key", b"abc"), ("key", 5), ("scores", 1.0), ("scores", ["a"]),
        ("place", [1]), ("place", {"x": "1"}), ("place", {"z": 1}), ("tags", [1]), ("tags", {"k": "v"}),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused_with_their_row(column: str, value: object) -> None:
    with pytest.raises(RowsRefused) as refused:
        table_from_rows([NULLS, {**NULLS, column: value}, FULL_ROW], SCHEMA, first_row=11)
    assert refused.value.row == 12
    assert refused.value.column is not None
    assert refused.value.column.split(".")[0] == column


def test_equivalent_values_are_accepted() -> None:
    rows = [{**NULLS, "key": str(UUID(int=7)), "tags": {"k": 1}, "double": 3, "price": 4, "scores": (1.0,)}]
    (row,) = table_from_rows(rows, SCHEMA).to_pylist()
    assert (row["key"], row["tags"], row["double"], row["price"]) == (UUID(int=7), [("k", 1)], 3.0, Decimal("4.00"))


def test_keys_must_be_the_columns() -> None:
    with pytest.raises(RowsRefused, match=r"^row 2, column 'extra': is not in the table"):
        table_from_rows([FULL_ROW, {**FULL_ROW, "extra": 1}], SCHEMA)
    with pytest.raises(RowsRefused, match=r"^row 1, column 'flag': is missing: give it"):
        table_from_rows([{"id": 1}], SCHEMA)
    with pytest.raises(RowsRefused, match=r"^row 1, column 'id': is missing, and the table requires it"):
        table_from_rows([{"flag": True}], SCHEMA, fill_missing=True)
    assert table_from_rows([{"id": 1}], SCHEMA, fill_missing=True).column("name").to_pylist() == [None]
    with pytest.raises(RowsRefused, match=r"^row 2: is int: give each row as a mapping"):
        table_from_rows([FULL_ROW, 5], SCHEMA)  # type: ignore[list-item]


def test_a_wrong_time_zone_gets_a_hint() -> None:
    with pytest.raises(RowsRefused, match="give it with its zone"):
        table_from_rows([{**FULL_ROW, "at": datetime(2024, 1, 1)}], SCHEMA)
