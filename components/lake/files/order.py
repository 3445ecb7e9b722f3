"""A table's sort order, applied to rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from components.lake.grouping import transformed
from components.lake.schema import TableSchema


def sort(table: pa.Table, schema: TableSchema) -> pa.Table:
    """In the table's order; as it is if there is none. Equal rows keep their order."""
    if not schema.order.fields or table.num_rows < 2:
        return table
    keys = [key for field in schema.order.fields for key in _keys(table, schema, field)]
    names = [f"key{place}" for place in range(len(keys))]
    order = pc.sort_indices(
        pa.table([values for values, _ in keys], names=names),
        sort_keys=[(name, direction) for name, (_, direction) in zip(names, keys, strict=True)],
    )
    return table.combine_chunks().take(order)


def sorting_columns(schema: TableSchema) -> list[tuple[int, bool, bool]]:
    """(position of a top-level column, descending, nulls first), as far as a file's footer can say it."""
    places = {field.field_id: place for place, field in enumerate(schema.iceberg.fields)}
    found = []
    for field in schema.order.fields:
        if not isinstance(field.transform, IdentityTransform) or field.source_id not in places:
            break
        nulls_first = field.null_order == NullOrder.NULLS_FIRST
        found.append((places[field.source_id], field.direction == SortDirection.DESC, nulls_first))
    return found


def _keys(table: pa.Table, schema: TableSchema, field: SortField) -> list[tuple[pa.Array, str]]:
    """Arrow puts NULL and NaN at the end whatever the direction: where Iceberg has them elsewhere, a key of their own
    comes before the values.
    """
    kind = schema.iceberg.find_field(field.source_id).field_type
    values = transformed(_column(table, schema, field.source_id), kind, field.transform)
    descending = field.direction == SortDirection.DESC
    keys: list[tuple[pa.Array, str]] = []
    if values.null_count:
        nulls_first = field.null_order == NullOrder.NULLS_FIRST
        keys.append((pc.is_null(values), "descending" if nulls_first else "ascending"))
    if descending and pa.types.is_floating(values.type):
        keys.append((pc.fill_null(pc.is_nan(values), False), "descending"))
    return [*keys, (values, "descending" if descending else "ascending")]


def _column(table: pa.Table, schema: TableSchema, field_id: int) -> pa.ChunkedArray:
    """A column, or a field inside structs: null where the struct is."""
    for top in schema.iceberg.fields:
        if top.field_id == field_id:
            return table.column(top.name)
    name = schema.iceberg.find_column_name(field_id) or ""
    top_name = next(top.name for top in schema.iceberg.fields if name.startswith(f"{top.name}."))
    return pc.struct_field(table.column(top_name), name[len(top_name) + 1 :].split("."))
