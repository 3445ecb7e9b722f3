"""Schema changes, and their application to the tree of fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from components.lib.lake.schema.schema_tree import EvolutionProblem, Fields, arrange, changed, find, replace, split_path
from components.lib.lake.schema.table_schema import TableSchema, check_partition, inner_fields, walk
from components.lib.lake.schema.transform_syntax import order_of
from components.lib.lake.schema.type_syntax import check_new_name, number, show


@dataclass(frozen=True)
class AddColumn:
    """Adds a column, without ids, at the end of the table or of the struct ``within``."""

    column: NestedField
    within: str = ""


@dataclass(frozen=True)
class DropColumn:
    column: str


@dataclass(frozen=True)
class RenameColumn:
    column: str
    name: str


@dataclass(frozen=True)
class WidenColumn:
    column: str
    type: IcebergType


@dataclass(frozen=True)
class MakeOptional:
    column: str


@dataclass(frozen=True)
class MoveColumn:
    """Moves a column after a sibling, named without its path, or to the beginning."""

    column: str
    after: str | None = None


@dataclass(frozen=True)
class SortBy:
    """Changes the sort order, written as in `table_definition`. Existing files stay as they are."""

    columns: Sequence[str]


_FieldChange: TypeAlias = AddColumn | DropColumn | RenameColumn | WidenColumn | MakeOptional | MoveColumn
SchemaChange: TypeAlias = _FieldChange | SortBy


def apply(schema: TableSchema, change: SchemaChange, next_id: Callable[[], int]) -> TableSchema:
    """Raises `EvolutionProblem` if this version rules it out; `check_evolution` considers all versions."""
    if isinstance(change, SortBy):
        return dataclasses.replace(schema, order=order_of(change.columns, schema.iceberg))
    fields = _change(schema, change, next_id)
    iceberg = Schema(*fields, identifier_field_ids=schema.iceberg.identifier_field_ids)
    check_partition(schema.partition, iceberg)  # a new name may be that of a partition field
    return dataclasses.replace(schema, iceberg=iceberg)


def _change(
    schema: TableSchema,
    change: AddColumn | DropColumn | RenameColumn | WidenColumn | MakeOptional | MoveColumn,
    next_id: Callable[[], int],
) -> Fields:
    fields = schema.iceberg.fields
    match change:
        case AddColumn():
            return _add(fields, change, next_id)
        case DropColumn():
            return _drop(schema, change.column)
        case RenameColumn():
            return _rename(fields, change)
        case WidenColumn():
            return _widen(fields, change)
        case MakeOptional():
            return _make_optional(schema, change.column)
        case MoveColumn():
            return _move(fields, change)


def _add(fields: Fields, change: AddColumn, next_id: Callable[[], int]) -> Fields:
    def extend(siblings: Fields) -> Fields:
        check_new_name(change.column.name, siblings, change.within)
        return (*siblings, *number([change.column], next_id))

    return arrange(fields, change.within, extend)


def _drop(schema: TableSchema, path: str) -> Fields:
    fields = schema.iceberg.fields
    within, dropped = split_path(fields, path)
    gone = {dropped.field_id} | {field.field_id for _, field in walk(inner_fields(dropped.field_type))}
    uses = {
        "partitioned by": [field.source_id for field in schema.partition.fields],
        "sorted by": [field.source_id for field in schema.order.fields],
        "identified by": schema.iceberg.identifier_field_ids,
    }
    for use, ids in uses.items():
        if gone.intersection(ids):
            remedy = ": change its order first" if use == "sorted by" else ""
            raise EvolutionProblem(f"column {path} can't be dropped: the table is {use} it{remedy}")

    def remove(siblings: Fields) -> Fields:
        if len(siblings) == 1:
            raise EvolutionProblem(f"column {path} can't be dropped: {within or 'the table'} would be empty without it")
        return tuple(field for field in siblings if field.field_id != dropped.field_id)

    return arrange(fields, within, remove)


def _rename(fields: Fields, change: RenameColumn) -> Fields:
    within, renamed = split_path(fields, change.column)

    def rename(siblings: Fields) -> Fields:
        check_new_name(change.name, [field for field in siblings if field.field_id != renamed.field_id], within)
        return tuple(
            changed(field, name=change.name) if field.field_id == renamed.field_id else field for field in siblings
        )

    return arrange(fields, within, rename)


def _widen(fields: Fields, change: WidenColumn) -> Fields:
    old = find(fields, change.column)
    if not old.field_type.is_primitive or not can_widen(old.field_type, change.type):
        raise EvolutionProblem(f"column {change.column}: {why_not(old.field_type, change.type)}")
    return replace(fields, old.field_id, lambda field: changed(field, kind=change.type))


def _make_optional(schema: TableSchema, path: str) -> Fields:
    fields = schema.iceberg.fields
    within, old = split_path(fields, path)
    if old.field_id in schema.iceberg.identifier_field_ids:
        raise EvolutionProblem(f"column {path} stays required: the table's rows are identified by it")
    if within and isinstance(find(fields, within).field_type, MapType) and old.name == "key":
        raise EvolutionProblem(f"column {path} stays required: it is the key of a map")
    return replace(fields, old.field_id, lambda field: changed(field, required=False))


def _move(fields: Fields, change: MoveColumn) -> Fields:
    within, moved = split_path(fields, change.column)

    def move(siblings: Fields) -> Fields:
        others = [field for field in siblings if field.field_id != moved.field_id]
        names = [field.name for field in others]
        if change.after is not None and change.after not in names:
            raise EvolutionProblem(
                f"column {change.column}: there is no {change.after!r} beside it, only {', '.join(names)}"
            )
        others.insert(0 if change.after is None else names.index(change.after) + 1, moved)
        return tuple(others)

    return arrange(fields, within, move)


def can_widen(old: IcebergType, new: IcebergType) -> bool:
    """Returns whether the new type holds every value of the old one. Nested types are compared by kind only."""
    match old, new:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return old.scale == new.scale and old.precision <= new.precision
        case (StructType(), StructType()) | (ListType(), ListType()) | (MapType(), MapType()):
            return True
        case _:
            return old == new


def why_not(old: IcebergType, new: IcebergType) -> str:
    return (
        f"{show(old)} can't become {show(new)}: only int to long, float to double and more digits of a decimal before "
        "its point keep existing files readable: add a new column instead"
    )
