from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Invalid
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, json_columns, parse_json, parse_json_as, to_json_text
from registry.models import ColumnStats, LedgerEntry, Segment, TableFile
from tests.samples import ONE_OF_EACH

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=15,
)


@given(_JSON)
def test_values_survive_a_round_trip(value: Any) -> None:
    document = to_json_text(value)
    assert parse_json(document) == value
    assert json.loads(document) == value


@given(st.dictionaries(_TEXT, _JSON, min_size=2, max_size=4))
def test_equal_values_are_equal_texts(value: dict[str, Any]) -> None:
    assert to_json_text(value) == to_json_text(dict(reversed(value.items())))
    assert to_json_text(json.loads(to_json_text(value))) == to_json_text(value)


def test_any_mapping_is_an_object() -> None:
    assert to_json_text(MappingProxyType({"b": 1, "a": MappingProxyType({})})) == '{"a":{},"b":1}'


def test_rows_survive_a_round_trip() -> None:
    (row,) = (row for row in ONE_OF_EACH if isinstance(row, TableFile))
    again = parse_json_as(to_json_text(row), TableFile)
    assert again == row
    assert again.column_stats is not None
    assert parse_json_as(again.column_stats, dict[str, ColumnStats]) == {"1": ColumnStats(value_count=10)}


def test_the_json_columns_of_a_row_are_found_by_their_type() -> None:
    assert json_columns(TableFile) == {"column_stats"}
    assert json_columns(LedgerEntry) == {"refresh_visibility", "tables"}
    assert json_columns(Segment) == frozenset()


@pytest.mark.parametrize("value", [object(), {1: "a"}, {"a": "\ud800"}, {"\ud800": 1}, {1, 2}.__iter__()])
def test_a_value_that_is_not_json_is_invalid(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        to_json_text(value, "config")
    assert caught.value.field == "config"


def test_a_value_nested_too_deep_is_invalid() -> None:
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(Invalid) as caught:
        to_json_text(deep)
    assert len(str(caught.value)) < 300


def test_empty_objects_and_lists() -> None:
    assert parse_json(EMPTY_OBJECT) == {}
    assert parse_json(EMPTY_LIST) == []
