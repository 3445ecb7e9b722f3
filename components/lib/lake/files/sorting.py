"""Sorts rows by a table's sort order.

As Iceberg specifies: text by its bytes, -0.0 before 0.0, every NaN after all numbers, NULLs first or last by the order.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from components.lib.lake.partitioning.partition_split import transformed
from components.lib.lake.schema.table_schema import TableSchema

Key: TypeAlias = npt.NDArray[Any]

_WORD = 64  # bits


def sort(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Returns the rows in the table's order, unchanged if it has none. Equal rows keep their order."""
    order = sorted_order(table, schema)
    return table if order is None else arrange(table.columns, table.schema, order)


def sorted_order(table: pa.Table, schema: TableSchema) -> npt.NDArray[np.int64] | None:
    """Returns the row indices in sorted order, or None if the rows are sorted already."""
    if not schema.order.fields or table.num_rows < 2:
        return None
    keys = sort_keys(table, schema)
    if _ascending(keys):
        return None
    packed = _packed(keys)
    if packed is not None:
        packed.sort()
        packed &= np.uint64((1 << (len(packed) - 1).bit_length()) - 1)
        return packed.view(np.int64)
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")  # fast for a few sorted runs
    return np.lexsort(keys[::-1])


def arrange(columns: list[pa.ChunkedArray], schema: pa.Schema, order: npt.NDArray[np.int64]) -> pa.Table:
    """Reorders column by column and empties ``columns``, so that at most one column is in memory twice if the caller
    has no other reference to them.
    """
    rows = pa.array(order)
    columns.reverse()
    return pa.table([_one(columns.pop()).take(rows) for _ in schema], schema=schema)


def sort_keys(table: pa.Table, schema: TableSchema) -> list[Key]:
    """Returns numeric keys whose ascending order is the table's, the most significant first."""
    return [key for field in schema.order.fields for key in field_keys(table, schema, field)]


def field_keys(table: pa.Table, schema: TableSchema, field: SortField) -> list[Key]:
    """Returns the keys of one sort field: a null flag if any row is null, then the values if there are any."""
    kind = schema.iceberg.find_field(field.source_id).field_type
    column = _column(table, schema, field.source_id)
    if pa.types.is_dictionary(column.type) and isinstance(field.transform, IdentityTransform):
        values = _one(column.unify_dictionaries())
    else:
        plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        values = transformed(plain, kind, field.transform)
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    keys: list[Key] = []
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        keys.append(~null if field.null_order == NullOrder.NULLS_FIRST else null)
    if values.null_count < len(values):
        ascending = _numbers(values)
        keys.append(~ascending if field.direction == SortDirection.DESC else ascending)
    return keys


def sorting_columns(schema: TableSchema) -> list[tuple[int, bool, bool]]:
    """Returns (position of a top-level column, descending, nulls first), as far as a footer can declare it."""
    places = {field.field_id: place for place, field in enumerate(schema.iceberg.fields)}
    found = []
    for field in schema.order.fields:
        if not isinstance(field.transform, IdentityTransform) or field.source_id not in places:
            break
        nulls_first = field.null_order == NullOrder.NULLS_FIRST
        found.append((places[field.source_id], field.direction == SortDirection.DESC, nulls_first))
    return found


def _numbers(values: pa.Array) -> Key:
    """Returns numbers in the order of the values; equal for all NULLs, so that those keep their order."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _numbers(values.dictionary)[_whole(pc.fill_null(values.indices, 0))]
    if pa.types.is_floating(kind):
        return _float_order(_whole(pc.fill_null(values, 0.0)))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _whole(pc.fill_null(values, pa.scalar(0).cast(kind)))
    if pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.large_binary())
    return _whole(pc.rank(values, sort_keys="ascending", tiebreaker="dense"))


def _float_order(floats: Key) -> Key:
    """The bits of floats sort like the floats; those of negative ones sort in reverse."""
    kind = np.int32 if floats.dtype == np.float32 else np.int64
    bits: Key = floats.view(kind)
    most = int(np.iinfo(kind).max)
    ordered = np.where(bits < 0, bits ^ most, bits)
    ordered[np.isnan(floats)] = most
    return ordered


def _whole(numbers: pa.Array) -> Key:
    found: Key = numbers.to_numpy(zero_copy_only=False)
    return found


def _ascending(keys: list[Key]) -> bool:
    if not keys:
        return True
    tied: npt.NDArray[np.bool_] = np.ones(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        one, next_one = key[:-1], key[1:]
        if np.any(tied & (one > next_one)):
            return False
        tied &= one == next_one
    return True


def _packed(keys: list[Key]) -> npt.NDArray[np.uint64] | None:
    """Returns one number per row that has all keys and, in its lowest bits, the number of the row; None if that takes
    more than 64 bits. Such numbers are distinct and compared in vectors, so that sorting them takes a third of the time
    of a stable `argsort`, also of sorted runs.
    """
    rows = len(keys[0])
    row_bits = (rows - 1).bit_length()
    least = [int(key.min()) for key in keys]
    bits = [(int(key.max()) - low).bit_length() for key, low in zip(keys, least, strict=True)]
    if sum(bits) + row_bits > _WORD:
        return None
    packed = np.zeros(rows, np.uint64)
    for key, low, width in zip(keys, least, bits, strict=True):
        packed <<= np.uint64(width)
        packed |= key.astype(np.uint64) - np.uint64(low % (1 << _WORD))  # wraps around, also for negative ones
    packed <<= np.uint64(row_bits)
    packed |= np.arange(rows, dtype=np.uint64)
    return packed


def _one(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _column(table: pa.Table, schema: TableSchema, field_id: int) -> pa.ChunkedArray:
    """Returns a column, or a field inside structs, null where the struct is."""
    for top in schema.iceberg.fields:
        if top.field_id == field_id:
            return table.column(top.name)
    name = schema.iceberg.find_column_name(field_id) or ""
    top_name = next(top.name for top in schema.iceberg.fields if name.startswith(f"{top.name}."))
    return pc.struct_field(table.column(top_name), name[len(top_name) + 1 :].split("."))
