"""Partitioning and sort order as users write them."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, StructType, TimestamptzType

from components.lib.lake.schema.transform_syntax import order_of, partition_of, show_order, show_partition
from components.lib.lake.schema.type_syntax import SyntaxProblem

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "ts", TimestamptzType()),
    NestedField(3, "name", StringType()),
    NestedField(4, "place", StructType(NestedField(5, "city", StringType()))),
    NestedField(6, "day", DateType()),
)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("name", (3, "identity", "name")),
        ("identity(name)", (3, "identity", "name")),
        ("year(ts)", (2, "year", "ts_year")),
        ("months(ts)", (2, "month", "ts_month")),
        ("DAY( ts )", (2, "day", "ts_day")),
        ("hour(ts)", (2, "hour", "ts_hour")),
        ("bucket(16, id)", (1, "bucket[16]", "id_bucket_16")),
        ("bucket(id,16)", (1, "bucket[16]", "id_bucket_16")),
        ("truncate(10, name)", (3, "truncate[10]", "name_trunc_10")),
        ("place.city", (5, "identity", "place.city")),
        ("day(ts) as d", (2, "day", "d")),
        ("year(day)", (6, "year", "day_year")),
    ],
)
def test_partition_fields(text: str, field: tuple[int, str, str]) -> None:
    (found,) = partition_of([text], SCHEMA).fields
    assert (found.source_id, str(found.transform), found.name) == field
    assert found.field_id == 1000


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["nowhere"], "there is no column 'nowhere' among id, ts, name"),
        (["day(id)"], "day does not work on id, which is a long"),
        (["hour(day)"], "hour does not work on day, which is a date"),
        (["week(ts)"], "is not understood: write column, year(ts)"),
        (["bucket(id)"], "is not understood"),
        (["bucket(0, id)"], "between 1 and"),
        (["day(ts, 3)"], "is not understood"),
        (["place"], "only a single value"),
        (["day(ts)", "hour(ts)"], "'hour(ts)' is redundant with 'day(ts)'"),
        (["name", "name"], "is redundant"),
        (["bucket(4, id) as name"], "`day(ts) as NAME` names a field otherwise"),
    ],
)
def test_invalid_partition_fields_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        partition_of(texts, SCHEMA)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("id", "1 ASC NULLS FIRST"),
        ("ts desc", "2 DESC NULLS LAST"),
        ("ts DESC NULLS FIRST", "2 DESC NULLS FIRST"),
        ("name nulls last", "3 ASC NULLS LAST"),
        ("bucket(4, id) desc", "bucket[4](1) DESC NULLS LAST"),
    ],
)
def test_sort_fields(text: str, shown: str) -> None:
    (found,) = order_of([text], SCHEMA).fields
    assert str(found) == shown


@pytest.mark.parametrize("text", ["nowhere", "ts down", "place", "day(name)"])
def test_invalid_sort_fields_are_refused(text: str) -> None:
    with pytest.raises(SyntaxProblem, match="sort_by"):
        order_of([text], SCHEMA)


@pytest.mark.parametrize(
    "text", ["name", "day(ts)", "bucket(16, id)", "truncate(9, name)", "day(ts) as d", "place.city"]
)
def test_partition_fields_are_shown_and_read_back(text: str) -> None:
    (field,) = partition_of([text], SCHEMA).fields
    assert show_partition(field, SCHEMA) == text


@pytest.mark.parametrize("text", ["id", "ts desc", "ts desc nulls first", "name nulls last", "bucket(4, id) desc"])
def test_sort_fields_are_shown_and_read_back(text: str) -> None:
    (field,) = order_of([text], SCHEMA).fields
    assert show_order(field, SCHEMA) == text
