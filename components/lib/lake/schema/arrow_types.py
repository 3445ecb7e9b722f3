"""The columns of an Arrow schema as Iceberg types, for tables that are created from an existing file."""

from __future__ import annotations

import pyarrow as pa
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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from components.lib.lake.schema.type_syntax import UNNUMBERED, SyntaxProblem

_MAX_DECIMAL_DIGITS = 38

_SIMPLE: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), IntegerType()),
    **dict.fromkeys((pa.int64(), pa.uint32()), LongType()),
    **dict.fromkeys((pa.float16(), pa.float32()), FloatType()),
    pa.float64(): DoubleType(),
    **dict.fromkeys((pa.date32(), pa.date64()), DateType()),
    **dict.fromkeys((pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")), TimeType()),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), StringType()),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), BinaryType()),
    pa.uuid(): UUIDType(),
}
"""Smaller types become the next larger Iceberg type; times are truncated to microseconds."""


def columns_of(schema: pa.Schema) -> list[NestedField]:
    return [_field(field, "") for field in schema]


def _field(field: pa.Field, above: str) -> NestedField:
    path = f"{above}{field.name}"
    return NestedField(UNNUMBERED, field.name, _type(field.type, path), required=not field.nullable)


def _type(kind: pa.DataType, path: str) -> IcebergType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _type(kind.value_type, path)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_timestamp(kind):
        return TimestampType() if kind.tz is None else TimestamptzType()
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_DECIMAL_DIGITS:
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        return FixedType(kind.byte_width)
    return _nested(kind, path)


def _nested(kind: pa.DataType, path: str) -> IcebergType:
    if pa.types.is_struct(kind):
        return StructType(*(_field(field, f"{path}.") for field in kind))
    if pa.types.is_map(kind):
        value = kind.item_field
        return MapType(
            UNNUMBERED, _type(kind.key_type, f"{path}.key"), UNNUMBERED, _type(value.type, f"{path}.value"),
            value_required=not value.nullable,
        )  # fmt: skip
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = kind.value_field
        return ListType(UNNUMBERED, _type(element.type, f"{path}.element"), element_required=not element.nullable)
    raise SyntaxProblem(
        f"column {path}: Arrow's {kind} has no counterpart in Iceberg v2: cast it in the file, or write the columns out"
    )
