from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import msgspec
import pytest
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, MonthTransform
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from components.lib.lake.iceberg import ForeignTable, IcebergTables
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.models import LakeTable
from tests.parquet_files import COLUMNS, PLAIN
from tests.unit.components.lib.lake.iceberg.conftest import named

NESTED = Schema(
    NestedField(3, "key", UUIDType(), required=True),
    NestedField(10, "price", DecimalType(10, 2), required=False),
    NestedField(11, "at", TimestamptzType(), required=False),
    NestedField(20, "tags", ListType(element_id=21, element_type=StringType(), element_required=True), required=False),
    NestedField(
        30,
        "place",
        StructType(NestedField(31, "city", StringType(), required=False), NestedField(35, "x", IntegerType())),
        required=False,
    ),
    NestedField(40, "more", MapType(41, StringType(), 42, LongType(), value_required=False), required=False),
)
WIDE = TableSchema(
    1,
    NESTED,
    PartitionSpec(
        PartitionField(11, 1000, MonthTransform(), "at_month"),
        PartitionField(3, 1003, BucketTransform(8), "key_bucket"),
    ),
    SortOrder(SortField(10, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST), order_id=1),
)


def evolve(tables: IcebergTables, table: LakeTable, schema: TableSchema) -> Schema:
    tables.ensure(table, PLAIN)
    tables.commit(table, lambda draft: draft.evolve(schema))
    found = tables.load(table)
    assert found is not None
    return found.schema()


def version(number: int, *columns: NestedField) -> TableSchema:
    return TableSchema(number, Schema(*columns), PLAIN.partition, PLAIN.order)


def test_field_ids_are_those_of_the_registry(tables: IcebergTables, table: LakeTable) -> None:
    created = tables.ensure(table, WIDE)
    assert created.schema().fields == NESTED.fields
    assert created.spec().fields == WIDE.partition.fields
    assert created.sort_order().fields == WIDE.order.fields
    assert created.metadata.last_column_id == 42
    assert created.metadata.last_partition_id == 1003
    assert created.location() == table.location
    assert created.metadata.properties["astha.table-id"] == "7"


def test_creating_a_table_twice_returns_the_first(
    tables: IcebergTables, other: IcebergTables, table: LakeTable
) -> None:
    assert tables.ensure(table, PLAIN).metadata.table_uuid == other.ensure(table, PLAIN).metadata.table_uuid


def test_a_nested_database_is_a_nested_namespace(tables: IcebergTables, table: LakeTable) -> None:
    nested = msgspec.structs.replace(table, database="eu.shop")
    assert tables.ensure(nested, PLAIN).name() == ("eu", "shop", "orders")
    tables.forget()
    assert tables.names() == {table.id: ("eu", "shop", "orders")}


def test_a_table_that_is_not_ours_is_left_alone(tables: IcebergTables, table: LakeTable) -> None:
    tables.catalog.create_namespace("shop")
    tables.catalog.create_table(("shop", "orders"), Schema(*COLUMNS), location=table.location)
    with pytest.raises(ForeignTable, match="not Astha's"):
        tables.ensure(table, PLAIN)


def test_columns_are_added_dropped_renamed_and_widened(tables: IcebergTables, table: LakeTable) -> None:
    first = version(1, NestedField(1, "id", IntegerType(), required=True), *COLUMNS[1:])
    tables.ensure(table, first)
    wanted = version(
        2,
        NestedField(1, "number", LongType(), required=False),
        NestedField(7, "at", TimestamptzType(), required=False),
        NestedField(8, "note", StringType(), required=False),
    )
    assert evolve(tables, table, wanted).fields == wanted.iceberg.fields
    loaded = tables.load(table)
    assert loaded is not None
    assert len(loaded.metadata.schemas) == 2
    assert loaded.metadata.properties["astha.schema-version"] == "2"
    assert tables.commit(table, lambda draft: draft.evolve(wanted)) is None, "it is there already"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ((NestedField(1, "id", StringType(), required=True),), "column id: long can't become string"),
        ((NestedField(1, "id", IntegerType(), required=True),), "column id: long can't become int"),
    ],
)
def test_an_impossible_evolution_names_the_column(
    tables: IcebergTables, table: LakeTable, columns: tuple[NestedField, ...], problem: str
) -> None:
    with pytest.raises(SchemaProblem, match=problem):
        evolve(tables, table, version(2, *columns))
    loaded = tables.load(table)
    assert loaded is not None
    assert loaded.schema().fields == PLAIN.iceberg.fields


def test_partition_specs_and_sort_orders_are_reused(tables: IcebergTables, table: LakeTable) -> None:
    by_name = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "name"))
    order = SortOrder(SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1)
    evolve(tables, table, TableSchema(2, PLAIN.iceberg, by_name, order))
    loaded = tables.load(table)
    assert loaded is not None
    assert loaded.spec().fields == by_name.fields
    assert loaded.sort_order().fields == order.fields
    evolve(tables, table, TableSchema(3, PLAIN.iceberg, PLAIN.partition, PLAIN.order))
    loaded = tables.load(table)
    assert loaded is not None
    assert loaded.spec().is_unpartitioned()
    assert loaded.sort_order().is_unsorted
    assert len(loaded.metadata.schemas) == 1


def test_a_renamed_table_keeps_its_metadata(
    tables: IcebergTables, other: IcebergTables, table: LakeTable, warehouse: Path
) -> None:
    created = tables.ensure(table, PLAIN)
    renamed = other.ensure(named("sales", warehouse), PLAIN)
    assert renamed.metadata.table_uuid == created.metadata.table_uuid
    assert renamed.name() == ("shop", "sales")
    assert tables.load(table) is None


def test_dropping_the_last_table_drops_its_namespace(tables: IcebergTables, table: LakeTable) -> None:
    tables.ensure(table, PLAIN)
    assert tables.names() == {7: ("shop", "orders")}
    assert tables.drop(7)
    assert tables.load(table) is None
    assert not tables.catalog.list_namespaces()
    assert not tables.drop(7)


def test_the_names_of_all_tables_are_read_without_loading_them(
    tables: IcebergTables, other: IcebergTables, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = [named(f"t{number}", warehouse, number) for number in range(1, 4)]
    for table in placed:
        tables.ensure(msgspec.structs.replace(table, location=f"{table.location}-{table.id}"), PLAIN, new=True)
    read: list[str] = []
    storage = other._owners._storage

    def reads(location: str) -> FileIO:
        read.append(location)
        return storage(location)

    monkeypatch.setattr(other._owners, "_storage", reads)
    monkeypatch.setattr(other.catalog, "load_table", lambda _: pytest.fail("the whole table was loaded"))
    assert other.names() == {number: ("shop", f"t{number}") for number in range(1, 4)}
    assert len(read) == 3
    tables.commit(placed[0], lambda draft: draft.set_properties({"a": "b"}))
    other.forget()
    assert other.names().keys() == {1, 2, 3}
    assert len(read) == 4, "only the metadata file that is new"


def test_a_new_table_is_created_without_a_look_at_the_others(
    tables: IcebergTables, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_scan", lambda: pytest.fail("the catalog was scanned"))
    assert tables.ensure(table, PLAIN, new=True).name() == ("shop", "orders")


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"format-version": 2}'])
def test_a_file_that_is_no_metadata_does_not_tell_an_owner(
    tables: IcebergTables, table: LakeTable, content: bytes
) -> None:
    metadata = Path(unquote(urlparse(tables.ensure(table, PLAIN).metadata_location).path))
    metadata.write_bytes(content)
    tables.forget()
    assert tables.names() == {}
    assert tables.unreadable == {("shop", "orders")}
