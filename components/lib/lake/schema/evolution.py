"""How one schema version becomes the next, and what can't.

A column is its id: it keeps the id through renames and moves, and an id that a column once had is never given to
another one, in whatever version that was. So files written under any version can be read under every later one.
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
    # what can be done with them
    "EvolutionProblem", "can_widen", "check_evolution", "evolve", "highest_id",
]  # fmt: skip


def evolve(versions: Sequence[TableMetadata], changes: Sequence[SchemaChange]) -> TableDraft:
    """The next version's draft. ``versions`` are all that the table has had, oldest first; changes happen in order."""
    schemas = [TableSchema.of(version) for version in versions]
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
    """In words, everything that makes the step from ``old`` to ``new`` impossible. Nothing: it can be made.

    ``earlier`` versions are looked at for ids that must not be used again.
    """
    problems: list[str] = []
    before, after = _places(old.iceberg), _places(new.iceberg)
    highest = highest_id([old, *earlier])
    for field_id, place in after.items():
        if field_id in before:
            problems += _differences(before[field_id], place)
        else:
            problems += _of_new(place, highest, before)
    sources = {field.source_id: field.name for field in old.partition.fields}
    problems += [
        f"column {place.path} can't be dropped: the table is partitioned by it ({sources[field_id]})"
        for field_id, place in before.items()
        if field_id in sources and field_id not in after
    ]
    if old.partition.fields != new.partition.fields:
        problems.append("the partitioning changes, which is not supported: create a new table and copy the rows")
    return problems


@dataclass(frozen=True)
class _Place:
    path: str
    field: NestedField
    parent: int | None  # the id of what it is in


def _places(schema: Schema) -> dict[int, _Place]:
    parents = {
        inner.field_id: outer.field_id for _, outer in walk(schema.fields) for inner in inner_fields(outer.field_type)
    }
    return {field.field_id: _Place(path, field, parents.get(field.field_id)) for path, field in walk(schema.fields)}


def _differences(old: _Place, new: _Place) -> Iterable[str]:
    before, after = old.field.field_type, new.field.field_type
    if old.parent != new.parent:
        yield f"column {old.path} moves out of its struct: only its place inside can change"
    if new.field.required and not old.field.required:
        yield f"column {old.path} becomes required, but existing rows may have no value for it"
    if not can_widen(before, after):
        yield f"column {old.path}: {why_not(before, after)}"
    if isinstance(before, MapType) and isinstance(after, MapType) and before.key_field != after.key_field:
        yield f"column {old.path}: the key of a map can't change: add a new column instead"


def _of_new(place: _Place, highest: int, before: dict[int, _Place]) -> Iterable[str]:
    if place.field.field_id <= highest:
        yield (
            f"column {place.path}: id {place.field.field_id} has been in use: a new column gets one above {highest}, "
            "since old files may still hold values under it"
        )
    if place.field.required and (place.parent is None or place.parent in before):
        yield f"column {place.path} is new and required, but existing rows have no value for it: add it without !"
