"""Types as users write them."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from components.lib.lake.schema.type_syntax import (
    UNNUMBERED,
    SyntaxProblem,
    number,
    parse_column,
    parse_type,
    show,
    show_field,
)
from tests.unit.components.lib.lake.schemas import NESTED, PRIMITIVES

NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="."), min_size=1, max_size=8)


def nested(inside: st.SearchStrategy[IcebergType]) -> st.SearchStrategy[IcebergType]:
    fields = st.lists(st.tuples(NAMES, inside, st.booleans()), min_size=1, max_size=4)
    return st.one_of(
        st.builds(lambda kind, required: ListType(UNNUMBERED, kind, required), inside, st.booleans()),
        st.builds(
            lambda key, value, required: MapType(UNNUMBERED, key, UNNUMBERED, value, required),
            inside, inside, st.booleans(),
        ),
        fields.map(
            lambda parts: StructType(*(NestedField(UNNUMBERED, *part[:2], required=part[2]) for part in parts))
        ),
    )  # fmt: skip


TYPES: st.SearchStrategy[IcebergType] = st.recursive(st.sampled_from(list(PRIMITIVES.values())), nested, max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(name=NAMES, kind=TYPES, required=st.booleans())
def test_a_shown_type_is_read_back(name: str, kind: IcebergType, required: bool) -> None:
    field = NestedField(UNNUMBERED, name, kind, required=required)
    assert parse_column(show_field(field)) == field
    assert parse_type(show(kind, required=required)) == (kind, required)


@pytest.mark.parametrize(
    ("text", "kind", "required"),
    [
        ("long!", LongType(), True),
        (" LONG ", LongType(), False),
        ("bigint", LongType(), False),
        ("text !", StringType(), True),
        ("decimal( 9 , 2 )", DecimalType(9, 2), False),
        ("fixed[16]", FixedType(16), False),
        ("fixed(16)", FixedType(16), False),
        ("list<string!>!", ListType(UNNUMBERED, StringType(), True), True),
        ("map<string,long>", MapType(UNNUMBERED, StringType(), UNNUMBERED, LongType(), False), False),
        ("struct<`a b`: long!>", StructType(NestedField(UNNUMBERED, "a b", LongType(), required=True)), False),
    ],
)
def test_spellings(text: str, kind: IcebergType, required: bool) -> None:
    assert parse_type(text) == (kind, required)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a type is missing"),
        ("lnog", "did you mean long?"),
        ("quaternion", "types are boolean, int"),
        ("timestamp_ns", "needs Iceberg v3"),
        ("variant", "needs Iceberg v3"),
        ("decimal", "write it as decimal(9,2)"),
        ("decimal(9)", "write it as decimal(9,2)"),
        ("decimal(a,2)", "'a' is not a number"),
        ("decimal(39,2)", "between 1 and 38"),
        ("decimal(3,4)", "more digits after the point"),
        ("fixed(0)", "at least one byte"),
        ("list", "write it as list<string>"),
        ("list<string", "'>' is missing"),
        ("map<string>", "write it as map<string, long>"),
        ("struct<>", "'>' is where a name is expected"),
        ("struct<a>", "after 'a' comes a colon and its type"),
        ("long long", "'long' is after the end"),
        ("long!!", "'!' is after the end"),
        ("struct<`a: long>", "backquote is not closed"),
        ("list<" * 60 + "int" + ">" * 60, "types are nested deeper than 50"),
    ],
)
def test_mistakes_name_the_column_and_the_remedy(text: str, said: str) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        parse_type(text, "price")
    assert "column price" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["id", "id long", ":long", ""])
def test_a_column_needs_a_name_and_a_type(text: str) -> None:
    with pytest.raises(SyntaxProblem, match="column"):
        parse_column(text)


def test_ids_are_assigned_in_icebergs_order() -> None:
    ids = count(1)
    columns = [parse_column(show_field(field)) for field in NESTED.fields]
    numbered = number(columns, lambda: next(ids))
    assert [field.field_id for field in numbered] == [1, 2, 3, 4]
    place, tags, prices = (field.field_type for field in numbered[1:])
    assert isinstance(place, StructType)
    assert [field.field_id for field in place.fields] == [5, 6]
    assert isinstance(tags, ListType)
    assert tags.element_id == 7
    assert isinstance(prices, MapType)
    assert (prices.key_id, prices.value_id) == (8, 9)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["a: int", "a: long"], "column a appears twice: rename"),
        (["a: int", "A: long"], "a differs only in case"),
        (["s: struct<b: int, B: int>"], "column s.B appears twice"),
        (["l: list<struct<b: int, b: int>>"], "column l.element.b appears twice"),
        (["`a.b`: int"], "without dots"),
        (["`\u0007`: int"], "control characters"),
        (["` `: int"], "not blank"),
        ([f"{'a' * 256}: int"], "at most 255"),
    ],
)
def test_names_that_engines_could_confuse_are_refused(columns: list[str], said: str) -> None:
    with pytest.raises(SyntaxProblem, match=said):
        number([parse_column(text) for text in columns], lambda: 1)
