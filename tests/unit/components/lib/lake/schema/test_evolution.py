"""From one schema version to the next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, IcebergType, IntegerType, LongType, NestedField, StringType

from components.lib.lake.schema.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SchemaChange,
    SortBy,
    WidenColumn,
    check_evolution,
    evolve,
)
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema, walk
from components.lib.lake.schema.type_syntax import parse_column, show_field
from registry.models import TableMetadata
from tests.unit.components.lib.lake.schema.test_table_schema import stored


def table(**definition: Any) -> list[TableMetadata]:
    schema = parse_definition(definition).schema()
    return [stored(schema.draft(properties={"a": "b"}))]


def grown(versions: list[TableMetadata], *changes: SchemaChange) -> list[TableMetadata]:
    return [*versions, stored(evolve(versions, changes), len(versions) + 1)]


def shown(versions: list[TableMetadata]) -> list[str]:
    return [f"{field.field_id} {show_field(field)}" for field in TableSchema.of(versions[-1]).iceberg.fields]


SALES = {
    "columns": {
        "id": "long!",
        "n": "int",
        "f": "float",
        "price": "decimal(9,2)",
        "place": "struct<city: string!, zip: int!>",
        "tags": "list<struct<name: string>>",
        "prices": "map<struct<k: int>, int>",
    },
    "partition_by": ["bucket(4, id)"],
    "sort_by": ["n"],
}


def test_each_change() -> None:
    versions = table(**SALES)
    assert shown(versions)[4] == "5 place: struct<city: string!, zip: int!>"
    steps: list[tuple[SchemaChange, int, str]] = [
        (WidenColumn("n", LongType()), 1, "2 n: long"),
        (WidenColumn("f", DoubleType()), 2, "3 f: double"),
        (WidenColumn("price", DecimalType(12, 2)), 3, "4 price: decimal(12,2)"),
        (RenameColumn("price", "net"), 3, "4 net: decimal(12,2)"),
        (MakeOptional("id"), 0, "1 id: long"),
        (RenameColumn("id", "key"), 0, "1 key: long"),
        (MakeOptional("place.zip"), 4, "5 place: struct<city: string!, zip: int>"),
        (WidenColumn("place.zip", LongType()), 4, "5 place: struct<city: string!, zip: long>"),
        (RenameColumn("place.city", "town"), 4, "5 place: struct<town: string!, zip: long>"),
        (
            AddColumn(parse_column("street: string"), "place"),
            4,
            "5 place: struct<town: string!, zip: long, street: string>",
        ),
        (MoveColumn("place.street", "town"), 4, "5 place: struct<town: string!, street: string, zip: long>"),
        (DropColumn("place.zip"), 4, "5 place: struct<town: string!, street: string>"),
        (AddColumn(parse_column("n: int"), "tags.element"), 5, "6 tags: list<struct<name: string, n: int>>"),
        (WidenColumn("tags.element.n", LongType()), 5, "6 tags: list<struct<name: string, n: long>>"),
        (WidenColumn("prices.value", LongType()), 6, "7 prices: map<struct<k: int>, long>"),
        (MoveColumn("prices"), 0, "7 prices: map<struct<k: int>, long>"),
        (DropColumn("f"), 3, "4 net: decimal(12,2)"),
    ]
    for change, place, expected in steps:
        before = TableSchema.of(versions[-1])
        versions = grown(versions, change)
        assert shown(versions)[place] == expected
        assert versions[-1].properties == '{"a":"b"}'
        assert check_evolution(before, TableSchema.of(versions[-1])) == []
    assert TableSchema.of(versions[-1]).partition == TableSchema.of(versions[0]).partition


def test_ids_of_dropped_columns_are_never_reused() -> None:
    versions = table(columns={"id": "long", "a": "struct<x: int, y: int>"})
    versions = grown(versions, DropColumn("a"))
    versions = grown(versions, AddColumn(parse_column("b: list<int>")))
    assert shown(versions) == ["1 id: long", "5 b: list<int>"]
    versions = grown(versions, DropColumn("b"), AddColumn(parse_column("b: int")), AddColumn(parse_column("c: int")))
    assert shown(versions) == ["1 id: long", "7 b: int", "8 c: int"]
    versions = grown(versions, DropColumn("c"))
    assert shown(grown(versions, AddColumn(parse_column("c: int"))))[-1] == "9 c: int"


def test_the_sort_order_can_change() -> None:
    versions = grown(table(**SALES), SortBy(["price desc"]), DropColumn("n"))
    assert [str(field) for field in TableSchema.of(versions[-1]).order.fields] == ["4 DESC NULLS LAST"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (AddColumn(parse_column("x: int!")), "column x is new and required"),
        (AddColumn(parse_column("x: int!"), "place"), "column place.x is new and required"),
        (AddColumn(parse_column("ID: int")), "id differs only in case"),
        (AddColumn(parse_column("x: int"), "n"), "column n is a int: only fields of a struct"),
        (AddColumn(parse_column("x: int"), "nowhere"), "there is no column 'nowhere' among id, n"),
        (AddColumn(parse_column("x: int"), "tags"), "only fields of a struct"),
        (AddColumn(parse_column("x: int"), "prices.key"), "column prices: the key of a map can't change"),
        (AddColumn(parse_column("id_bucket_4: int")), "id_bucket_4"),
        (DropColumn("id"), "the table is partitioned by it"),
        (DropColumn("n"), "the table is sorted by it: change its order first"),
        (DropColumn("nowhere"), "there is no column 'nowhere'"),
        (DropColumn("tags.element"), "only fields of a struct can be added, dropped"),
        (DropColumn("tags.element.name"), "tags.element would be empty"),
        (RenameColumn("n", "f"), "column f appears twice"),
        (RenameColumn("n", "a.b"), "without dots"),
        (RenameColumn("tags.element", "x"), "only fields of a struct"),
        (WidenColumn("id", IntegerType()), "long can't become int"),
        (WidenColumn("n", StringType()), "int can't become string: only int to long"),
        (WidenColumn("price", DecimalType(12, 3)), "decimal(9,2) can't become decimal(12,3)"),
        (WidenColumn("price", DecimalType(8, 2)), "can't become decimal(8,2)"),
        (WidenColumn("place", StringType()), "can't become string"),
        (WidenColumn("prices.key.k", LongType()), "the key of a map can't change"),
        (MakeOptional("prices.key"), "it is the key of a map"),
        (MoveColumn("n", "nowhere"), "there is no 'nowhere' beside it"),
        (MoveColumn("place.city", "id"), "there is no 'id' beside it, only zip"),
        (SortBy(["nowhere"]), "there is no column"),
    ],
)
def test_impossible_changes_are_refused(change: SchemaChange, said: str) -> None:
    with pytest.raises(SchemaProblem) as raised:
        evolve(table(**SALES), [change])
    assert said in str(raised.value)


def test_the_last_column_cannot_be_dropped() -> None:
    with pytest.raises(SchemaProblem, match="the table would be empty"):
        evolve(table(columns={"a": "int"}), [DropColumn("a")])


def test_a_float_partition_column_cannot_be_widened() -> None:
    with pytest.raises(SchemaProblem, match="a double can't be a partition's value"):
        evolve(table(columns={"f": "float"}, partition_by=["f"]), [WidenColumn("f", DoubleType())])


def _schema(*fields: tuple[int, str, IcebergType, bool], partition_by: str | None = None) -> TableSchema:
    schema = Schema(*(NestedField(*field[:3], required=field[3]) for field in fields))
    return parse_definition({"columns": schema.model_dump(mode="json"), "partition_by": partition_by}).schema()


def test_versions_written_by_others_are_checked_too() -> None:
    old = _schema((1, "a", LongType(), False), (3, "b", IntegerType(), True), partition_by="a")
    new = _schema((1, "a", IntegerType(), True), (2, "c", StringType(), True), partition_by="c")
    problems = check_evolution(old, new)
    assert len(problems) == 5
    for said in (
        "column a becomes required",
        "column a: long can't become int",
        "column c: id 2 has been in use",
        "column c is new and required",
        "the partitioning changes",
    ):
        assert any(said in problem for problem in problems), problems
    gone = _schema((3, "b", IntegerType(), True))
    assert check_evolution(old, gone)[0] == "column a can't be dropped: the table is partitioned by it (a)"
    assert check_evolution(old, old) == []


def test_ids_of_earlier_versions_are_not_reused() -> None:
    first = _schema((1, "a", LongType(), False), (2, "b", LongType(), False))
    second = _schema((1, "a", LongType(), False))
    third = _schema((1, "a", LongType(), False), (2, "c", LongType(), False))
    assert check_evolution(first, second) == []
    assert check_evolution(second, third) == []  # it does not know the first
    assert "id 2 has been in use" in check_evolution(second, third, [first])[0]


CHANGES = st.one_of(
    st.builds(lambda name, kind: AddColumn(parse_column(f"{name}: {kind}")), st.sampled_from("abcdef"),
              st.sampled_from(["int", "float", "decimal(5,2)", "struct<x: int, y: list<int>>", "map<string, int>"])),
    st.builds(DropColumn, st.sampled_from("abcdef")),
    st.builds(RenameColumn, st.sampled_from("abcdef"), st.sampled_from("abcdef")),
    st.builds(WidenColumn, st.sampled_from([*"abcdef", "a.x", "a.y.element"]),
              st.sampled_from([LongType(), DoubleType(), DecimalType(9, 2)])),
    st.builds(lambda parent, name: AddColumn(parse_column(f"{name}: int"), parent), st.sampled_from("abcdef"),
              st.sampled_from("xyz")),
    st.builds(MoveColumn, st.sampled_from("abcdef"), st.none() | st.sampled_from("abcdef")),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(changes=st.lists(CHANGES, max_size=25))
def test_a_column_keeps_its_id_through_any_history(changes: list[SchemaChange]) -> None:
    versions = table(columns={"id": "long!"}, partition_by=["id"])
    owners: dict[int, int] = {}  # id -> the version that gave it
    for change in changes:
        try:
            versions = grown(versions, change)
        except SchemaProblem:
            continue
        schemas = [TableSchema.of(version) for version in versions]
        assert check_evolution(schemas[-2], schemas[-1], schemas[:-2]) == []
        before = {field.field_id for _, field in walk(schemas[-2].iceberg.fields)}
        for _, field in walk(schemas[-1].iceberg.fields):
            if field.field_id not in before:
                assert field.field_id not in owners
                owners[field.field_id] = len(versions)
