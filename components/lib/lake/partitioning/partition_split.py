"""Computes the partition of each row of an Arrow table, column by column instead of row by row in Python.

Most transforms are a few Arrow kernels; those without a kernel (calendar months, hashes of text) run in Python once per
distinct value. Why not PyIceberg's: decision 0020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_WHOLE = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)
_BITS_OF = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
EPOCH = date(1970, 1, 1)
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
"""The calendar repeats after this time, which extends it beyond Python's years 1..9999."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


@dataclass(frozen=True)
class PartitionSplit:
    """``numbers`` maps each row to the index of its partition in ``values``."""

    values: list[tuple[Any, ...]]
    numbers: pa.Array

    def divide(self, table: pa.Table, names: Sequence[str]) -> list[tuple[str, pa.Table]]:
        """Splits rows by partition name. Values with the same name (NaNs with different bits) are one partition."""
        if len(set(names)) == 1:
            return [(names[0], table)]
        numbers, count = self.numbers, len(names)
        if len(set(names)) < count:
            places = {name: place for place, name in enumerate(dict.fromkeys(names))}
            numbers = pc.take(pa.array([places[name] for name in names], pa.int32()), numbers)
            names, count = list(places), len(places)
        if not _ascending(numbers):
            order = pc.sort_indices(numbers)  # stable
            numbers, table = pc.take(numbers, order), table.combine_chunks().take(order)
        # Every number from 0 occurs, so the ends of runs are all that is needed.
        lengths = {row["values"]: row["counts"] for row in pc.value_counts(numbers).to_pylist()}
        parts, start = [], 0
        for place, name in enumerate(names):
            parts.append((name, table.slice(start, lengths[place])))
            start += lengths[place]
        return parts


def group(table: pa.Table, schema: Schema, spec: PartitionSpec) -> PartitionSplit:
    """Groups rows by all partition fields; partitions are in order of first appearance."""
    values: list[tuple[Any, ...]] = [()]
    codes = None
    for field in spec.fields:
        source = schema.find_field(field.source_id).field_type
        column = _column(table, schema, field.source_id)
        numbers, distinct = _encode(transformed(column, source, field.transform))
        many = len(distinct)
        if codes is not None:  # renumbered after each field, so that the product stays below 2**63
            numbers = pc.add(pc.multiply(codes, pa.scalar(many, pa.int64())), numbers)
        encoded = numbers.dictionary_encode()
        found = encoded.dictionary.to_pylist()
        values = [(*values[number // many], distinct[number % many]) for number in found]
        codes = pc.cast(encoded.indices, pa.int64())
    return PartitionSplit(values, codes)


def transformed(column: pa.Array, source: IcebergType, transform: Transform[Any, Any]) -> pa.Array:
    """Returns the partition value of each row, as an array of the value's physical type."""
    match transform:
        case IdentityTransform():
            return _physical(column, source)
        case VoidTransform():
            return pa.nulls(len(column))
        case YearTransform():
            return _by_distinct(_days(column, source), lambda days: date_of(days)[0] - 1970, pa.int32())
        case MonthTransform():
            return _by_distinct(_days(column, source), _months, pa.int32())
        case DayTransform():
            return _days(column, source)
        case HourTransform():
            return _floor_divide(_physical(column, source), _HOUR_US)
        case BucketTransform():
            if isinstance(source, _WHOLE):
                return _buckets(_physical(column, source), transform.num_buckets)
            return _by_distinct(_physical(column, source), transform.transform(source), pa.int32())
        case TruncateTransform():
            return _truncated(_physical(column, source), source, transform)
        case _:
            raise ValueError(f"no transform of rows by {transform}")


def date_of(days: int) -> tuple[int, int, int]:
    """Returns year, month and day, given days since 1970-01-01."""
    cycles, rest = divmod(days, CYCLE_DAYS)
    day = EPOCH + timedelta(rest)
    return day.year + cycles * CYCLE_YEARS, day.month, day.day


def _months(days: int) -> int:
    year, month, _ = date_of(days)
    return (year - 1970) * 12 + month - 1


def _column(table: pa.Table, schema: Schema, field_id: int) -> pa.Array:
    name = schema.find_column_name(field_id) or ""
    whole = name if name in table.column_names else name.partition(".")[0]
    column = table.column(whole)
    if whole != name:  # pc.struct_field: null where the struct is null
        column = pc.struct_field(column, name[len(whole) + 1 :].split("."))
    return column


def _physical(column: pa.Array | pa.ChunkedArray, source: IcebergType) -> pa.Array:
    """Returns one array of numbers, text or bytes, with 64-bit offsets, so that any size fits."""
    if isinstance(source, UUIDType):
        column = column.cast(pa.binary(16)) if column.type != pa.binary(16) else column
    elif isinstance(source, StringType):
        column = column.cast(pa.large_string())
    elif isinstance(source, BinaryType | FixedType):
        column = column.cast(pa.large_binary())
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(source, TimestampType | TimestamptzType):
        zone = "UTC" if isinstance(source, TimestamptzType) else None
        return array.cast(pa.timestamp("us", zone)).view(pa.int64())
    if isinstance(source, TimeType):
        return array.cast(pa.time64("us")).view(pa.int64())
    if isinstance(source, DateType):
        return array.cast(pa.date32()).view(pa.int32())
    return array


def _days(column: pa.Array, source: IcebergType) -> pa.Array:
    numbers = _physical(column, source)
    return numbers if isinstance(source, DateType) else _floor_divide(numbers, _DAY_US)


def _floor_divide(numbers: pa.Array, by: int) -> pa.Array:
    """Rounds down, also below zero (times before 1970), where Arrow rounds towards zero."""
    divisor = pa.scalar(by, numbers.type)
    towards_zero = pc.divide(numbers, divisor)
    below = pc.less(numbers, pc.multiply(towards_zero, divisor))
    return pc.subtract(towards_zero, pc.cast(below, numbers.type))


def _truncated(array: pa.Array, source: IcebergType, transform: TruncateTransform[Any]) -> pa.Array:
    match source:
        case StringType():
            return pc.utf8_slice_codeunits(array, 0, transform.width)
        case BinaryType():
            return pc.binary_slice(array, 0, transform.width)
        case DecimalType():
            return _by_distinct(array, transform.transform(source), pa.decimal128(38, source.scale))
        case _:
            # Wraps around at the type's smallest numbers, as Iceberg's Java does.
            return pc.multiply(_floor_divide(array, transform.width), pa.scalar(transform.width, array.type))


def _by_distinct(array: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    encoded = array.dictionary_encode()
    results = [function(value) for value in encoded.dictionary.to_pylist()]
    return pc.take(pa.array(results, kind), encoded.indices)


def _buckets(numbers: pa.Array, count: int) -> pa.Array:
    """Hashes each number, as eight little-endian bytes, with Murmur3 (x86, 32 bits, seed 0), as Iceberg specifies.

    Relies on Arrow's unsigned arithmetic wrapping around.
    """
    bits = pc.cast(numbers, pa.int64()).view(pa.uint64())
    low = pc.cast(pc.bit_wise_and(bits, pa.scalar(0xFFFFFFFF, pa.uint64())), pa.uint32())
    high = pc.cast(pc.shift_right(bits, pa.scalar(32, pa.uint64())), pa.uint32())
    state = pa.scalar(0, pa.uint32())
    for block in (low, high):
        mixed = _times(_rotated(_times(block, 0xCC9E2D51), 15), 0x1B873593)
        state = pc.add(_times(_rotated(pc.bit_wise_xor(mixed, state), 13), 5), _number(0xE6546B64))
    state = pc.bit_wise_xor(state, _number(8))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = _times(pc.bit_wise_xor(state, pc.shift_right(state, _number(shift))), factor)
    state = pc.bit_wise_xor(state, pc.shift_right(state, _number(16)))
    positive = pc.cast(pc.bit_wise_and(state, _number(0x7FFFFFFF)), pa.int32())
    divisor = pa.scalar(count, pa.int32())
    return pc.subtract(positive, pc.multiply(pc.divide(positive, divisor), divisor))


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint32())


def _times(array: pa.Array, factor: int) -> pa.Array:
    return pc.multiply(array, _number(factor))


def _rotated(array: pa.Array, by: int) -> pa.Array:
    return pc.bit_wise_or(pc.shift_left(array, _number(by)), pc.shift_right(array, _number(32 - by)))


def _encode(array: pa.Array) -> tuple[pa.Array, list[Any]]:
    """Returns for each row the index of its value, and the distinct values, NULL included."""
    bits = _BITS_OF.get(array.type)
    if bits is not None:  # 0.0 and -0.0 are two values
        encoded = array.view(bits).dictionary_encode(null_encoding="encode")
        distinct = encoded.dictionary.view(array.type)
    else:
        encoded = array.dictionary_encode(null_encoding="encode")
        distinct = encoded.dictionary
    return pc.cast(encoded.indices, pa.int64()), distinct.to_pylist()


def _ascending(numbers: pa.Array) -> bool:
    if len(numbers) < 2:
        return True
    return bool(pc.all(pc.less_equal(numbers[:-1], numbers[1:])).as_py())
