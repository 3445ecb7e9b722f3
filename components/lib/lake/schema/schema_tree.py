"""The tree of a schema's fields: find by dotted path, and change without touching ids.

A list's element is ``tags.element``, a map's are ``prices.key`` and ``prices.value``, as in Iceberg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from components.lib.lake.schema.table_schema import SchemaProblem, inner_fields, walk
from components.lib.lake.schema.type_syntax import show

Fields: TypeAlias = tuple[NestedField, ...]
Edit: TypeAlias = Callable[[NestedField], NestedField]


class EvolutionProblem(SchemaProblem):
    """A change that cannot be made. The message says why, and what to do instead."""


def find(fields: Fields, path: str) -> NestedField:
    for name, field in walk(fields):
        if name == path:
            return field
    names = ", ".join(field.name for field in fields)
    raise EvolutionProblem(f"there is no column {path!r} among {names}")


def replace(fields: Fields, target: int, edit: Edit) -> Fields:
    """Returns the fields with ``edit`` applied to the one with that id, at any depth."""
    return tuple(edit(field) if field.field_id == target else _inside(field, target, edit) for field in fields)


def arrange(fields: Fields, within: str, arrangement: Callable[[Fields], Fields]) -> Fields:
    """Returns the fields with those of a struct (of the table if ``within`` is empty) rearranged."""
    if not within:
        return arrangement(fields)
    parent = find(fields, within)
    if not isinstance(parent.field_type, StructType):
        raise EvolutionProblem(
            f"column {within} is a {show(parent.field_type)}: only fields of a struct can be added, dropped or moved"
        )
    inner = arrangement(parent.field_type.fields)
    return replace(fields, parent.field_id, lambda field: changed(field, kind=StructType(*inner)))


def split_path(fields: Fields, path: str) -> tuple[str, NestedField]:
    """Returns the path of the enclosing field, and the field."""
    field = find(fields, path)
    return path[: -len(field.name) - 1] if path != field.name else "", field


def changed(
    field: NestedField, *, name: str | None = None, kind: IcebergType | None = None, required: bool | None = None
) -> NestedField:
    return NestedField(
        field.field_id,
        name or field.name,
        kind or field.field_type,
        required=field.required if required is None else required,
        doc=field.doc,
    )


def _inside(field: NestedField, target: int, edit: Edit) -> NestedField:
    kind = field.field_type
    inner = replace(inner_fields(kind), target, edit)
    match kind:
        case StructType():
            return changed(field, kind=StructType(*inner))
        case ListType():
            (element,) = inner
            return changed(field, kind=ListType(element.field_id, element.field_type, element.required))
        case MapType():
            key, value = inner
            new = MapType(key.field_id, key.field_type, value.field_id, value.field_type, value.required)
            return changed(field, kind=new)
        case _:
            return field
