"""Partition values and their paths, `field=value/field=value`, converted without loss in both directions
(decision 0010).

Values are in the form of PyIceberg's manifests: dates, times and timestamps as integers since their epoch, UUIDs as
`UUID`, everything else as Python's own type. Paths are readable: ``ts_day=2024-05-01/id_bucket_16=3``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform, MonthTransform, Transform, YearTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from components.lib.lake.partitioning.partition_split import CYCLE_DAYS, CYCLE_YEARS, EPOCH, date_of, group
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.validation import MAX_PATH_BYTES

NULL = "__HIVE_DEFAULT_PARTITION__"

Write: TypeAlias = Callable[[Any], str]
Read: TypeAlias = Callable[[str], Any]

_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US


class PartitionProblem(SchemaProblem):
    """A partition path or value that is not valid for the table. The message names the field."""


@dataclass(frozen=True, slots=True)
class _PathPart:
    name: str  # percent-encoded
    write: Write
    read: Read


class Partitioning:
    """The partitioning of one schema version. Keep the object: parsing a path then takes a few microseconds."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._parts = [_part(field, schema.iceberg) for field in schema.partition.fields]

    def path(self, values: Record | Sequence[Any]) -> str:
        """Returns the path, ``""`` for an unpartitioned table."""
        if len(values) != len(self._parts):
            raise PartitionProblem(f"{len(values)} partition values, where the table has {len(self._parts)} fields")
        path = "/".join(
            f"{part.name}={_encoded(part, values[place])}" for place, part in enumerate(self._parts)
        )  # a Record has no iterator
        if len(path) > MAX_PATH_BYTES:
            raise PartitionProblem(
                f"partition {path[:80]}...: its path has {len(path):,} bytes, at most {MAX_PATH_BYTES:,} are allowed: "
                "partition by truncate(N, column) instead of the whole text"
            )
        return path

    def values(self, path: str) -> Record:
        """The inverse of `path`. A path in any other spelling is refused: a partition has one name."""
        parts = path.split("/") if path else []
        if len(parts) != len(self._parts):
            fields = "/".join(f"{part.name}=..." for part in self._parts)
            raise PartitionProblem(f"partition path {path!r} does not have the form {fields!r}")
        values = []
        for part, text in zip(self._parts, parts, strict=True):
            name, _, encoded = text.partition("=")
            if name != part.name:
                raise PartitionProblem(f"partition path {path!r}: {name!r} is where {part.name!r} is expected")
            try:
                value = None if encoded == NULL else part.read(unquote(encoded, errors="strict"))
                good = encoded == _encoded(part, value)
            except (ValueError, LookupError, ArithmeticError) as error:
                raise PartitionProblem(f"partition path {path!r}: {encoded!r} is not a value of {name}") from error
            if not good:
                raise PartitionProblem(
                    f"partition path {path!r}: {encoded!r} should be written {_encoded(part, value)!r}"
                )
            values.append(value)
        return Record(*values)

    def split(self, table: pa.Table) -> list[tuple[str, pa.Table]]:
        """Returns the rows of each partition, in order of first appearance; rows keep their order.

        Copies nothing if the rows of each partition are already adjacent. Columns are found by name.
        """
        if table.num_rows == 0:
            return []
        if not self._parts:
            return [("", table)]
        groups = group(table, self._schema.iceberg, self._schema.partition)
        return groups.divide(table, [self.path(values) for values in groups.values])


def split(table: pa.Table, schema: TableSchema) -> list[tuple[str, pa.Table]]:
    """`Partitioning.split` for a single use."""
    return Partitioning(schema).split(table)


def _part(field: PartitionField, schema: Schema) -> _PathPart:
    source = schema.find_field(field.source_id).field_type
    write, read = _forms(field.transform, field.transform.result_type(source))
    return _PathPart(quote(field.name, safe=""), write, read)


def _encoded(part: _PathPart, value: Any) -> str:
    if value is None:
        return NULL
    text = quote(part.write(value), safe="")
    return f"%{ord(NULL[0]):X}{NULL[1:]}" if text == NULL else text


def _forms(transform: Transform[Any, Any], result: IcebergType) -> tuple[Write, Read]:
    match transform:
        case YearTransform():
            return (lambda year: f"{1970 + year:04}"), (lambda text: int(text) - 1970)
        case MonthTransform():
            return _write_month, _read_month
        case HourTransform():
            return _write_hour, _read_hour
        case _:
            return _forms_of_type(result)


def _forms_of_type(kind: IcebergType) -> tuple[Write, Read]:
    match kind:
        case BooleanType():
            return (lambda value: "true" if value else "false"), {"true": True, "false": False}.__getitem__
        case StringType():
            return str, str
        case FloatType() | DoubleType():
            return (lambda value: repr(float(value))), float
        case DecimalType():
            return _decimal_forms(kind)
        case DateType():
            return _write_day, _read_day
        case TimeType():
            return _write_time, _read_time
        case TimestampType():
            return _write_timestamp, _read_timestamp
        case TimestamptzType():
            return (lambda us: f"{_write_timestamp(us)}+00:00"), (
                lambda text: _read_timestamp(text.removesuffix("+00:00"))
            )
        case UUIDType():
            return (lambda value: str(value if isinstance(value, UUID) else UUID(bytes=value))), UUID
        case BinaryType() | FixedType():
            return bytes.hex, bytes.fromhex
        case _:  # int, long, and the results of bucket
            return str, int


def _decimal_forms(kind: DecimalType) -> tuple[Write, Read]:
    def write(value: Decimal) -> str:
        return f"{_scaled(value, kind.scale):f}"

    return write, lambda text: _scaled(Decimal(text), kind.scale)


def _scaled(value: Decimal, scale: int) -> Decimal:
    """Returns the value with exactly that scale, whatever the context's precision, and without a negative zero."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")
    unscaled = int("".join(map(str, digits)))
    moved, rest = divmod(unscaled * 10 ** max(0, exponent + scale), 10 ** max(0, -exponent - scale))
    if rest:
        raise ValueError(f"{value} has more than {scale} digits after the point")
    return Decimal((sign if moved else 0, tuple(map(int, str(moved))), -scale))


def _write_day(days: int) -> str:
    year, month, day = date_of(days)
    return f"{year:04}-{month:02}-{day:02}"


def _read_day(text: str) -> int:
    year, month, day = text.rsplit("-", 2)
    cycles, rest = divmod(int(year) - 1970, CYCLE_YEARS)
    return cycles * CYCLE_DAYS + (date(1970 + rest, int(month), int(day)) - EPOCH).days


def _write_month(months: int) -> str:
    return f"{1970 + months // 12:04}-{1 + months % 12:02}"


def _read_month(text: str) -> int:
    year, month = text.rsplit("-", 1)
    return (int(year) - 1970) * 12 + int(month) - 1


def _write_hour(hours: int) -> str:
    days, hour = divmod(hours, 24)
    return f"{_write_day(days)}-{hour:02}"


def _read_hour(text: str) -> int:
    day, hour = text.rsplit("-", 1)
    return _read_day(day) * 24 + int(hour)


def _write_time(us: int) -> str:
    seconds, us = divmod(us, _SECOND_US)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{us:06}" if us else text


def _read_time(text: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * _SECOND_US + int(fraction or 0)


def _write_timestamp(us: int) -> str:
    days, rest = divmod(us, _DAY_US)
    return f"{_write_day(days)}T{_write_time(rest)}"


def _read_timestamp(text: str) -> int:
    day, _, clock = text.partition("T")
    return _read_day(day) * _DAY_US + _read_time(clock)
