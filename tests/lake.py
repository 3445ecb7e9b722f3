"""Tables of the lake for tests: schemas with every type, and matching rows."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import Transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from sqlalchemy import text

from astha.subscribers.context import LakeSettings
from components.lib.lake.iceberg import IcebergTables, open_catalog
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import table_location
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import checksum_of
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import StoreSettings, parse_url, sync_engine
from registry.models import LakeTable

EVERYTHING = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "small", IntegerType()),
    NestedField(4, "single", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "price", DecimalType(9, 2)),
    NestedField(7, "amount", DecimalType(18, 4)),
    NestedField(8, "huge", DecimalType(38, 5)),
    NestedField(9, "day", DateType()),
    NestedField(10, "clock", TimeType()),
    NestedField(11, "local", TimestampType()),
    NestedField(12, "at", TimestamptzType()),
    NestedField(13, "name", StringType()),
    NestedField(14, "raw", BinaryType()),
    NestedField(15, "code", FixedType(4)),
    NestedField(16, "key", UUIDType()),
    NestedField(17, "scores", ListType(18, DoubleType(), element_required=False)),
    NestedField(19, "place", StructType(NestedField(20, "x", DoubleType()), NestedField(21, "label", StringType()))),
    NestedField(22, "tags", MapType(23, StringType(), 24, LongType(), value_required=False)),
)

SIMPLE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "day", DateType()),
)

FULL_ROW: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "small": -3,
    "single": 1.5,
    "double": float("nan"),
    "price": Decimal("1.23"),
    "amount": Decimal("-4.5"),
    "huge": Decimal("-123456789012345678901234.5"),
    "day": date(2024, 5, 1),
    "clock": time(1, 2, 3, 4),
    "local": datetime(2024, 5, 1, 12),
    "at": datetime(2024, 5, 1, 12, tzinfo=UTC),
    "name": "é" * 20,
    "raw": b"\xff" * 20,
    "code": b"abcd",
    "key": UUID(int=5),
    "scores": [1.0, float("nan"), None],
    "place": {"x": -0.0, "label": "q"},
    "tags": [("k", 1), ("l", None)],
}

EMPTY_ROW: dict[str, Any] = {"id": 2}


def table_schema(
    schema: Schema = SIMPLE,
    *,
    partition: list[tuple[int, Transform[Any, Any], str]] | None = None,
    order: list[SortField] | None = None,
    **rest: Any,
) -> TableSchema:
    fields = [
        PartitionField(source, 1000 + place, transform, name)
        for place, (source, transform, name) in enumerate(partition or [])
    ]
    return TableSchema(
        version=1,
        iceberg=schema,
        partition=PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC,
        order=SortOrder(*order) if order else UNSORTED_SORT_ORDER,
        **rest,
    )


def order_of(*fields: tuple[int, Any, str]) -> list[SortField]:
    """Fields as (source id, transform, "asc first" or the like)."""
    return [
        SortField(
            source,
            transform=transform,
            direction=SortDirection.DESC if "desc" in how else SortDirection.ASC,
            null_order=NullOrder.NULLS_FIRST if "first" in how else NullOrder.NULLS_LAST,
        )
        for source, transform, how in fields
    ]


def rows_of(schema: TableSchema, *rows: dict[str, Any]) -> pa.Table:
    """Returns the rows as an Arrow table, UUIDs as bytes."""
    plain = [{name: value.bytes if isinstance(value, UUID) else value for name, value in row.items()} for row in rows]
    return pa.Table.from_pylist(plain, schema=schema.arrow())


def iceberg_tables(url: str, lake: LakeSettings) -> IcebergTables:
    """Opens the tables of the registry at ``url``. Also usable while an event loop runs."""

    async def identity() -> str:
        store = await open_store(url)
        try:
            return await registry_identity(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as thread:
        return IcebergTables(open_catalog(url, lake), thread.submit(lambda: asyncio.run(identity())).result())


def execute_sql(url: str, statement: str) -> None:
    """Executes SQL directly, bypassing the store."""
    engine = sync_engine(parse_url(url), StoreSettings())
    with engine.connect() as connection:
        assert connection.execute(text(statement)).rowcount != 0
    engine.dispose()


async def create_table(
    store: MetadataStore, warehouse: Path | str, name: str = "orders", schema: TableSchema | None = None
) -> LakeTable:
    draft = (schema or table_schema()).draft()
    return await store.create_table("shop", name, table_location(str(warehouse), "shop", name), draft)


async def read_rows(store: MetadataStore, table: LakeTable, objects: Objects | None = None) -> list[dict[str, Any]]:
    """Returns all rows of the registered files; checks size, checksum and row count of each."""
    objects = objects or Objects(LakeSettings())
    rows: list[dict[str, Any]] = []
    async for file in store.stream_files(table.id):
        data = await objects.get(file.file_path)
        assert (file.file_size, file.checksum) == (len(data), checksum_of(data))
        found = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
        assert file.row_count == len(found)
        rows += found
    return rows


def files_below(directory: Path) -> set[str]:
    """Returns the files as locations."""
    return {f"file://{path}" for path in directory.rglob("*") if path.is_file()}


def environment_of(lake: LakeSettings) -> dict[str, str]:
    """Returns the settings as environment variables of a command."""
    given = {"WAREHOUSE": lake.warehouse}
    s3 = lake.s3
    if s3.endpoint is not None:
        assert s3.access_key is not None
        assert s3.secret_key is not None
        given |= {
            "S3__ENDPOINT": s3.endpoint,
            "S3__ACCESS_KEY": s3.access_key.get_secret_value(),
            "S3__SECRET_KEY": s3.secret_key.get_secret_value(),
            "S3__ALLOW_HTTP": "true",
        }
    return {f"ASTHA_LAKE__{name}": value for name, value in given.items()}
