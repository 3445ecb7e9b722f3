from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.documents import EMPTY_LIST, EMPTY_OBJECT, Document, encode
from registry.errors import Invalid
from registry.models import ColumnStats, TableFile
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
def test_what_goes_in_comes_out(value: Any) -> None:
    document = Document.of(value)
    assert document.load() == value
    assert json.loads(document) == value


@given(st.dictionaries(_TEXT, _JSON, min_size=2, max_size=4))
def test_equal_values_are_equal_texts(value: dict[str, Any]) -> None:
    assert Document.of(value) == Document.of(dict(reversed(value.items())))
    assert Document.of(json.loads(Document.of(value))) == Document.of(value)


def test_a_document_passes_as_it_is_and_nests_unquoted() -> None:
    document = Document('{"b":1}')
    assert Document.of(document) is document
    assert Document.of({"x": document, "a": [document]}) == '{"a":[{"b":1}],"x":{"b":1}}'
    assert encode([("a", Document("null"))]) == '[["a",null]]'


def test_any_mapping_is_an_object() -> None:
    assert Document.of(MappingProxyType({"b": 1, "a": MappingProxyType({})})) == '{"a":{},"b":1}'


def test_rows_nest_their_documents_and_come_back() -> None:
    (row,) = (row for row in ONE_OF_EACH if isinstance(row, TableFile))
    document = Document.of(row)
    assert '"column_stats":{"1":{"value_count":10}}' in document
    again = document.load_as(TableFile)
    assert again == row
    assert isinstance(again.column_stats, Document)
    assert again.column_stats.load_as(dict[str, ColumnStats]) == {"1": ColumnStats(value_count=10)}


@pytest.mark.parametrize("value", [object(), {1: "a"}, {"a": "\ud800"}, {"\ud800": 1}, {1, 2}.__iter__()])
def test_what_is_not_json_is_invalid_by_name(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        Document.of(value, "config")
    assert caught.value.field == "config"


def test_what_is_too_deep_is_invalid() -> None:
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(Invalid) as caught:
        Document.of(deep)
    assert len(str(caught.value)) < 300


def test_empty_ones() -> None:
    assert EMPTY_OBJECT.load() == {}
    assert EMPTY_LIST.load() == []
