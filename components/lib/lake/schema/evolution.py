"""Derives the next schema version, and refuses changes that existing files could not be read with.

A column is identified by its id: it keeps the id through renames and moves, and an id is never reused, in any version.
So files written with any version can be read with every later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import MapType, NestedField

from components.lib.lake.schema.schema_changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SchemaChange,
    SortBy,
    WidenColumn,
    apply,
    can_widen,
    why_not,
)
from components.lib.lake.schema.schema_tree import EvolutionProblem
from components.lib.lake.schema.table_schema import TableSchema, inner_fields, walk
from registry.inputs import TableDraft
from registry.json_text import parse_json_as
from registry.models import TableMetadata

__all__ = [
    # changes
    "AddColumn", "SchemaChange", "DropColumn", "MakeOptional", "MoveColumn", "RenameColumn", "SortBy", "WidenColumn",
    # evolution
    "EvolutionProblem", "can_widen", "check_evolution", "evolve", "highest_id",
]  # fmt: skip


def evolve(versions: Sequence[TableMetadata], changes: Sequence[SchemaChange]) -> TableDraft:
    """Returns the draft of the next version. ``versions`` are all versions of the table, oldest first."""
    schemas = [*map(TableSchema.read, versions[:-1]), TableSchema.of(versions[-1])]
    newest, metadata = schemas[-1], versions[-1]
    ids = count(highest_id(schemas) + 1)
    evolved = newest
    for change in changes:
        evolved = apply(evolved, change, lambda: next(ids))
    problems = check_evolution(newest, evolved, schemas[:-1])
    if problems:
        raise EvolutionProblem("; ".join(problems))
    return evolved.draft(
        properties=parse_json_as(metadata.properties, dict[str, str]),
        storage_engine=metadata.storage_engine,
        engine_config=metadata.engine_config,
    )


def highest_id(schemas: Iterable[TableSchema]) -> int:
    return max(schema.iceberg.highest_field_id for schema in schemas)


def check_evolution(old: TableSchema, new: TableSchema, earlier: Iterable[TableSchema] = ()) -> list[str]:
    """Returns every reason why ``new`` cannot follow ``old``; none if it can.

    ``earlier`` versions contribute ids that must not be reused.
    """
    problems: list[str] = []
    before, after = _positions(old.iceberg), _positions(new.iceberg)
    highest = highest_id([old, *earlier])
    for field_id, position in after.items():
        if field_id in before:
            problems += _differences(before[field_id], position)
        else:
            problems += _problems_of_new(position, highest, before)
    sources = {field.source_id: field.name for field in old.partition.fields}
    problems += [
        f"column {position.path} can't be dropped: the table is partitioned by it ({sources[field_id]})"
        for field_id, position in before.items()
        if field_id in sources and field_id not in after
    ]
    if old.partition.fields != new.partition.fields:
        problems.append("the partitioning changes, which is not supported: create a new table and copy the rows")
    return problems


@dataclass(frozen=True)
class _Position:
    path: str
    field: NestedField
    parent: int | None  # the id of the enclosing field


def _positions(schema: Schema) -> dict[int, _Position]:
    parents = {
        inner.field_id: outer.field_id for _, outer in walk(schema.fields) for inner in inner_fields(outer.field_type)
    }
    return {field.field_id: _Position(path, field, parents.get(field.field_id)) for path, field in walk(schema.fields)}


def _differences(old: _Position, new: _Position) -> Iterable[str]:
    before, after = old.field.field_type, new.field.field_type
    if old.parent != new.parent:
        yield f"column {old.path} moves out of its struct: only its position inside can change"
    if new.field.required and not old.field.required:
        yield f"column {old.path} becomes required, but existing rows may have no value for it"
    if not can_widen(before, after):
        yield f"column {old.path}: {why_not(before, after)}"
    if isinstance(before, MapType) and isinstance(after, MapType) and before.key_field != after.key_field:
        yield f"column {old.path}: the key of a map can't change: add a new column instead"


def _problems_of_new(position: _Position, highest: int, before: dict[int, _Position]) -> Iterable[str]:
    if position.field.field_id <= highest:
        yield (
            f"column {position.path}: id {position.field.field_id} has been in use: a new column needs one above "
            f"{highest}, because old files may contain values under it"
        )
    if position.field.required and (position.parent is None or position.parent in before):
        yield f"column {position.path} is new and required, but existing rows have no value for it: add it without !"
