"""Schemas for tests: one with every type, and table schemas with it."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from components.lib.lake.schema.table_schema import TableSchema

PRIMITIVES: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal": DecimalType(20, 3),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "fixed": FixedType(5),
    "binary": BinaryType(),
}

NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(
        2,
        "place",
        StructType(NestedField(3, "city", StringType(), required=True), NestedField(4, "at", TimestamptzType())),
    ),
    NestedField(5, "tags", ListType(6, StringType(), False), required=True),
    NestedField(
        7, "prices", MapType(8, StringType(), 9, StructType(NestedField(10, "net", DecimalType(9, 2))), False)
    ),
)  # fmt: skip


def partitioned(schema: Schema, *fields: tuple[int, str]) -> TableSchema:
    """Fields as (source id, transform), named p0, p1, ..."""
    spec = PartitionSpec(
        *(
            PartitionField(source, 1000 + place, parse_transform(transform), f"p{place}")
            for place, (source, transform) in enumerate(fields)
        )
    )
    return TableSchema(1, schema, spec, UNSORTED_SORT_ORDER)


def of_one(kind: IcebergType, transform: str = "identity") -> TableSchema:
    return partitioned(Schema(NestedField(1, "c", kind)), (1, transform))
