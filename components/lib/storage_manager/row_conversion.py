"""Converts rows of Python objects to Arrow columns of a table's types.

Arrow's own conversion is lenient: it truncates a float to an int and takes a local time for UTC. So the type of each
value is checked first; Arrow then checks its range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
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

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.coercion import first_failing
from components.lib.storage_manager.decimals import is_scalable
from components.lib.storage_manager.errors import RowsRefused

Row: TypeAlias = Mapping[str, Any]
Convert: TypeAlias = Callable[[Any], Any]

_EXACT: dict[type[IcebergType], frozenset[type]] = {
    BooleanType: frozenset({bool}),
    IntegerType: frozenset({int}),
    LongType: frozenset({int}),
    FloatType: frozenset({float, int}),
    DoubleType: frozenset({float, int}),
    DecimalType: frozenset({Decimal, int}),
    DateType: frozenset({date}),
    StringType: frozenset({str}),
    BinaryType: frozenset({bytes}),
    FixedType: frozenset({bytes}),
}
"""Python types whose values are all acceptable. Values of other types are checked one by one."""

_UNKNOWN = "is not in the table: leave it out, or add it to the table first"


class CannotConvert(Exception):
    """Says for one value where in its column it is, and why it cannot be converted."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path
        self.why = why


def table_from_rows(
    rows: Sequence[Row], schema: TableSchema, *, first_row: int = 1, fill_missing: bool = False
) -> pa.Table:
    """Does not check for nulls in required columns: `coercion.coerce` does."""
    wanted = schema.arrow()
    fields = schema.iceberg.fields
    names = {field.name for field in fields}
    for number, row in enumerate(rows, first_row):
        if not isinstance(row, Mapping):
            raise RowsRefused(f"is {type(row).__name__}: give each row as a mapping from column to value", row=number)
        if row.keys() != names:
            _check_keys(row, names, fields, number, fill_missing=fill_missing)
    return pa.table([_column(rows, field, wanted.field(field.name).type, first_row) for field in fields], schema=wanted)


def _check_keys(row: Row, names: set[str], fields: tuple[NestedField, ...], number: int, *, fill_missing: bool) -> None:
    for name in row:
        if name not in names:
            raise RowsRefused(
                "is not in the table: leave it out, or add it to the table first", row=number, column=name
            )
    for field in fields:
        if field.name not in row and (field.required or not fill_missing):
            why = "is missing, and the table requires it" if field.required else "is missing: give it, if only as null"
            raise RowsRefused(why, row=number, column=field.name)


def _column(rows: Sequence[Row], field: NestedField, wanted: pa.DataType, first_row: int) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    exact = None if isinstance(field.field_type, DecimalType) else _EXACT.get(type(field.field_type))
    if exact is None or not {type(value) for value in values} - {type(None)} <= exact:
        for number, value in enumerate(values):
            try:
                values[number] = _plain(value, field.field_type, field.name)
            except CannotConvert as error:
                raise RowsRefused(error.why, row=first_row + number, column=error.path) from None
    try:
        column = pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        row = first_failing(len(values), lambda end: not _converts(values[:end], wanted))
        shown = f"{_shown(values[row])} does not fit into {field.field_type}"
        raise RowsRefused(shown, row=first_row + row, column=field.name) from None
    if isinstance(field.field_type, FloatType):
        _check_overflow(column, values, field, first_row)
    return column


def _converts(values: list[Any], wanted: pa.DataType) -> bool:
    try:
        pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return False
    return True


def _check_overflow(column: pa.Array, values: list[Any], field: NestedField, first_row: int) -> None:
    for place in pc.indices_nonzero(pc.fill_null(pc.is_inf(column), False)).to_pylist():
        if abs(values[place]) != float("inf"):
            shown = f"{_shown(values[place])} does not fit into {field.field_type}"
            raise RowsRefused(shown, row=first_row + place, column=field.name)


def _plain(value: Any, kind: IcebergType, path: str) -> Any:  # noqa: C901  (one case a type)
    """Returns the value in a form that Arrow converts without loss. Raises `CannotConvert`."""
    if value is None:
        return None
    match kind:
        case StructType():
            if not isinstance(value, Mapping):
                raise _cannot_convert(value, kind, path)
            known = {field.name for field in kind.fields}
            for name in value:
                if name not in known:
                    raise CannotConvert(f"{path}.{name}", _UNKNOWN)
            return {
                field.name: _plain(value.get(field.name), field.field_type, f"{path}.{field.name}")
                for field in kind.fields
            }
        case ListType():
            if not isinstance(value, list | tuple):
                raise _cannot_convert(value, kind, path)
            return [_plain(item, kind.element_type, f"{path}.element") for item in value]
        case MapType():
            pairs = list(value.items()) if isinstance(value, Mapping) else value
            if not isinstance(pairs, list | tuple) or any(
                not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
            ):
                raise _cannot_convert(value, kind, path)
            return [
                (_plain(key, kind.key_type, f"{path}.key"), _plain(item, kind.value_type, f"{path}.value"))
                for key, item in pairs
            ]
        case UUIDType():
            if isinstance(value, str):
                try:
                    value = UUID(value)
                except ValueError:
                    raise _cannot_convert(value, kind, path) from None
            if isinstance(value, UUID):
                return value.bytes
            good = isinstance(value, bytes) and len(value) == 16
        case TimestampType():
            good = isinstance(value, datetime) and value.tzinfo is None
        case TimestamptzType():
            good = isinstance(value, datetime) and value.tzinfo is not None
        case DateType():
            good = isinstance(value, date) and not isinstance(value, datetime)
        case TimeType():
            good = isinstance(value, time) and value.tzinfo is None
        case BooleanType():
            good = isinstance(value, bool)
        case DecimalType():
            if isinstance(value, Decimal) and not is_scalable(value, kind.scale):
                raise CannotConvert(path, f"{_shown(value)} does not fit into {kind}")
            good = isinstance(value, Decimal | int) and not isinstance(value, bool)
        case _:
            exact = _EXACT.get(type(kind), frozenset())
            good = isinstance(value, tuple(exact)) and not isinstance(value, bool)
    if not good:
        raise _cannot_convert(value, kind, path)
    return value


def _cannot_convert(value: Any, kind: IcebergType, path: str) -> CannotConvert:
    hint = ""
    if isinstance(value, datetime) and isinstance(kind, TimestampType | TimestamptzType):
        hint = ": give it without a zone" if isinstance(kind, TimestampType) else ": give it with its zone"
    article = "an" if isinstance(kind, IntegerType) else "a"
    return CannotConvert(path, f"{_shown(value)} ({type(value).__name__}) is not {article} {kind}{hint}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # lists in lists, or an integer of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."
