"""Hypothesis strategies for tables, rows and later schema versions, and a naive model of their evolution."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from datetime import UTC
from decimal import Decimal
from itertools import count
from typing import Any, TypeAlias

from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
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

from components.lib.lake.schema.schema_changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SchemaChange,
    WidenColumn,
    apply,
)
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.schema.type_syntax import UNNUMBERED, number
from tests.lake import table_schema

Row: TypeAlias = dict[str, Any]

FLAT: tuple[IcebergType, ...] = (
    BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(9, 2), DecimalType(18, 4),
    DecimalType(38, 5), DateType(), TimeType(), TimestampType(), TimestamptzType(), StringType(), BinaryType(),
    FixedType(4), FixedType(20), UUIDType(),
)  # fmt: skip
_WIDER: dict[type[IcebergType], IcebergType] = {IntegerType: LongType(), FloatType: DoubleType()}
_NAMES = ("a", "b", "c", "d", "e", "f")


def types(depth: int = 2, *, inside: bool = False) -> st.SearchStrategy[IcebergType]:
    flat = st.sampled_from(FLAT[:-1] if inside else FLAT)  # Arrow does not convert Python's nested UUIDs
    if not depth:
        return flat
    inner = types(depth - 1, inside=True)
    return st.one_of(
        flat,
        flat,
        st.builds(_list, inner, st.booleans()),
        st.builds(_map, inner, st.booleans()),
        fields(depth - 1, 3, inside=True).map(lambda found: StructType(*found)),
    )


def _list(kind: IcebergType, required: bool) -> ListType:
    return ListType(UNNUMBERED, kind, required)


def _map(kind: IcebergType, required: bool) -> MapType:
    return MapType(UNNUMBERED, StringType(), UNNUMBERED, kind, required)


@st.composite
def fields(draw: st.DrawFn, depth: int = 2, most: int = 5, *, inside: bool = False) -> list[NestedField]:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=most, unique=True))
    kinds = types(depth, inside=inside)
    return [NestedField(UNNUMBERED, name, draw(kinds), required=draw(st.booleans())) for name in names]


@st.composite
def schemas(draw: st.DrawFn, *, ordered: bool = False) -> TableSchema:
    ids = count(1)
    found = table_schema(Schema(*number(draw(fields()), lambda: next(ids))))
    return dataclasses.replace(found, order=draw(orders(found))) if ordered else found


@st.composite
def orders(draw: st.DrawFn, schema: TableSchema) -> SortOrder:
    flat = [field.field_id for field in schema.iceberg.fields if field.field_type.is_primitive]
    chosen = draw(st.lists(st.sampled_from(flat), max_size=3, unique=True)) if flat else []
    ways, nulls = st.sampled_from(list(SortDirection)), st.sampled_from(list(NullOrder))
    return SortOrder(*(SortField(source, IdentityTransform(), draw(ways), draw(nulls)) for source in chosen))


@st.composite
def successors(draw: st.DrawFn, schema: TableSchema) -> TableSchema:
    """Returns a later version; impossible changes are skipped."""
    highest = schema.iceberg.highest_field_id
    ids = count(highest + 1)
    found = schema
    for _ in range(draw(st.integers(0, 4))):
        try:
            found = apply(found, draw(_changes(found)), lambda: next(ids))
        except SchemaProblem:
            continue
    return dataclasses.replace(found, version=schema.version + 1)


@st.composite
def _changes(draw: st.DrawFn, schema: TableSchema) -> SchemaChange:
    paths = list(schema.iceberg.column_names)
    path = draw(st.sampled_from(paths))
    kind = schema.iceberg.find_field(path).field_type
    name = draw(st.sampled_from(["x", "y", "z"]))
    new = NestedField(UNNUMBERED, name, draw(types(1, inside=True)), required=False)
    wider = DecimalType(38, kind.scale) if isinstance(kind, DecimalType) else _WIDER.get(type(kind), kind)
    changes: list[SchemaChange] = [
        AddColumn(new),
        AddColumn(new, within=path),
        DropColumn(path),
        RenameColumn(path, name),
        WidenColumn(path, wider),
        MakeOptional(path),
        MoveColumn(path),
    ]
    return draw(st.sampled_from(changes))


def rows(schema: TableSchema, most: int = 8) -> st.SearchStrategy[list[Row]]:
    return st.lists(_struct(schema.iceberg.fields), max_size=most)


def _struct(inside: Sequence[NestedField]) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries({field.name: _value(field.field_type, field.required) for field in inside})


def _value(kind: IcebergType, required: bool) -> st.SearchStrategy[Any]:
    found = _present(kind)
    return found if required else st.none() | found


def _present(kind: IcebergType) -> st.SearchStrategy[Any]:
    match kind:
        case StructType():
            return _struct(kind.fields)
        case ListType():
            return st.lists(_value(kind.element_type, kind.element_required), max_size=3)
        case MapType():
            pairs = st.tuples(_present(kind.key_type), _value(kind.value_type, kind.value_required))
            return st.lists(pairs, max_size=3)
        case DecimalType():
            largest = 10**kind.precision - 1
            return st.integers(-largest, largest).map(lambda unscaled: _scaled(unscaled, kind.scale))
        case FixedType():
            return st.binary(min_size=len(kind), max_size=len(kind))
        case _:
            return _FLAT_VALUES[type(kind)]


_TEXT = st.one_of(
    st.sampled_from(["", "a", "ab", "b", "\x00", "a\x00"]), st.text(max_size=20), st.just("lo" * 200), st.just("lo" * 9)
)
_FLAT_VALUES: dict[type[IcebergType], st.SearchStrategy[Any]] = {
    BooleanType: st.booleans(),
    IntegerType: st.sampled_from([0, 1, -1]) | st.integers(-(2**31), 2**31 - 1),
    LongType: st.sampled_from([0, 1, -1]) | st.integers(-(2**63), 2**63 - 1),
    FloatType: st.sampled_from([0.0, -0.0, float("nan"), float("inf")]) | st.floats(width=32),
    DoubleType: st.sampled_from([0.0, -0.0, float("nan"), float("-inf")]) | st.floats(),
    DateType: st.dates(),
    TimeType: st.times(),
    TimestampType: st.datetimes(),
    TimestamptzType: st.datetimes().map(lambda when: when.replace(tzinfo=UTC)),
    StringType: _TEXT,
    BinaryType: _TEXT.map(str.encode) | st.binary(max_size=20),
    UUIDType: st.binary(min_size=16, max_size=16),
}


def _scaled(unscaled: int, scale: int) -> Decimal:
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    return Decimal((sign, digits, -scale))


def evolved(row: Row, old: Sequence[NestedField], new: Sequence[NestedField]) -> Row:
    """Returns a row of an older version in the newer one."""
    known = {field.field_id: field for field in old}
    return {
        field.name: _evolved(row[known[field.field_id].name], known[field.field_id].field_type, field.field_type)
        if field.field_id in known
        else None
        for field in new
    }


def _evolved(value: Any, old: IcebergType, new: IcebergType) -> Any:
    if value is None:
        return None
    match old, new:
        case StructType(), StructType():
            return evolved(value, old.fields, new.fields)
        case ListType(), ListType():
            return [_evolved(item, old.element_type, new.element_type) for item in value]
        case MapType(), MapType():
            return [(key, _evolved(item, old.value_type, new.value_type)) for key, item in value]
        case _:
            return value


def in_order(found: Sequence[Row], schema: TableSchema) -> list[Row]:
    """Sorts naively: by the least significant column first, with a stable sort each."""
    ordered = list(found)
    for field in reversed(schema.order.fields):
        column = schema.iceberg.find_field(field.source_id)
        nulls = [row for row in ordered if row[column.name] is None]
        others = [row for row in ordered if row[column.name] is not None]
        descending = field.direction is SortDirection.DESC
        others.sort(key=lambda row: _comparable(row[column.name], column.field_type), reverse=descending)
        ordered = nulls + others if field.null_order is NullOrder.NULLS_FIRST else others + nulls
    return ordered


def _comparable(value: Any, kind: IcebergType) -> Any:
    if isinstance(value, float):
        if value != value:
            return (1, 0)
        bits = struct.unpack(">q", struct.pack(">d", value))[0]
        return (0, bits if bits >= 0 else bits ^ (2**63 - 1))
    return value.encode() if isinstance(value, str) else value


def naive(value: Any) -> Any:
    """Returns a value comparable by equality: NaN equals itself, and zeros have signs."""
    if isinstance(value, dict):
        return tuple((name, naive(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(naive, value))
    if isinstance(value, float):
        return ("float", repr(value))
    if hasattr(value, "bytes") and not isinstance(value, bytes):
        return value.bytes
    return value
