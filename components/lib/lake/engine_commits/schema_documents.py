"""Schemas, partition specs and sort orders in their JSON form: equality, ids, and whether they fit together.

Works on the documents and not on PyIceberg's models, because a table may have types that PyIceberg does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform, parse_transform
from pyiceberg.types import IcebergType

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import FIRST_PARTITION_ID, Document

_DEFAULTS_VERSION = 3
"""Default values of columns need at least this format version."""

_VERSION_3_TYPES = ("timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography")
_MAX_DEPTH = 200

T = TypeVar("T")


def parsed(schema: Document) -> Schema | None:
    """Returns PyIceberg's schema, or None if it has a type that PyIceberg does not know."""
    try:
        return Schema.model_validate(schema)
    except (ValidationError, ValueError, KeyError, TypeError):
        return None


def fields_of(schema: Document) -> Iterator[tuple[str, Document, bool]]:
    """Yields each field with its dotted path, and whether it can be a source: is not inside a list or map."""
    yield from _walk(_list(schema, "fields"), "", source=True, depth=0)


def _walk(fields: Sequence[Document], above: str, *, source: bool, depth: int) -> Iterator[tuple[str, Document, bool]]:
    if depth > _MAX_DEPTH:
        raise InvalidCommit(f"a schema of more than {_MAX_DEPTH} levels")
    for field in fields:
        if not isinstance(field.get("id"), int) or not isinstance(field.get("name"), str) or "type" not in field:
            raise InvalidCommit(f"not a column of a schema: it needs an id, a name and a type: {str(field)[:200]}")
        path = f"{above}{field['name']}"
        yield path, field, source
        inner, nested = _inner(field["type"])
        yield from _walk(inner, f"{path}.", source=source and nested, depth=depth + 1)


def _inner(kind: Any) -> tuple[list[Document], bool]:
    """Returns the fields inside a type, and whether the type is a struct."""
    if not isinstance(kind, dict):
        return [], False
    required = {"list": ("element-id", "element"), "map": ("key-id", "key", "value-id", "value"), "struct": ("fields",)}
    names = required.get(kind.get("type", ""))
    if names is None or any(name not in kind for name in names):
        raise InvalidCommit(f"not a type of a column: {str(kind)[:200]}")
    if names == ("fields",):
        return _list(kind, "fields"), True
    return [
        {"id": kind[f"{part}-id"], "name": part, "type": kind[part], "required": kind.get(f"{part}-required", True)}
        for part in ("element", "key", "value")
        if f"{part}-id" in kind
    ], False


def highest_field_id(schema: Document) -> int:
    return max((field["id"] for _, field, _ in fields_of(schema)), default=0)


def check_schema(schema: Document, format_version: int) -> None:
    """Raises `InvalidCommit` for ids that appear twice, and for what the format version does not have."""
    seen: dict[int, str] = {}
    for path, field, _ in fields_of(schema):
        if field["id"] in seen:
            raise InvalidCommit(f"Invalid schema: {path} and {seen[field['id']]} have the same id {field['id']}")
        seen[field["id"]] = path
        kind = str(field["type"]).partition("(")[0] if isinstance(field["type"], str) else ""
        if kind in _VERSION_3_TYPES and format_version < _DEFAULTS_VERSION:
            raise InvalidCommit(
                f"Invalid schema for v{format_version}: {path}: {field['type']} is not supported until "
                f"v{_DEFAULTS_VERSION}"
            )
        if field.get("initial-default") is not None and format_version < _DEFAULTS_VERSION:
            raise InvalidCommit(
                f"Invalid schema for v{format_version}: {path}: a default value is not supported until "
                f"v{_DEFAULTS_VERSION}"
            )
    missing = [number for number in schema.get("identifier-field-ids") or () if number not in seen]
    if missing:
        raise InvalidCommit(f"Invalid schema: no column has the identifier field id {missing[0]}")
    if format_version < _DEFAULTS_VERSION and parsed(schema) is None:
        raise InvalidCommit(f"Invalid schema: a type that Iceberg v{format_version} does not have: {str(schema)[:500]}")


def same_schema(left: Document, right: Document) -> bool:
    """Returns whether columns and identifier fields are equal; the ids of the schemas do not matter."""
    return _identifiers(left) == _identifiers(right) and _normal(left["fields"]) == _normal(right["fields"])


def _identifiers(schema: Document) -> set[int]:
    return set(schema.get("identifier-field-ids") or ())


def _normal(value: Any) -> Any:
    """Returns the value without what may be written in several ways: absent fields and blanks in types."""
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item.replace(" ", "") if key in ("type", "element", "key", "value") and isinstance(item, str)
        else _normal(item)
        for key, item in value.items()
        if item is not None and key != "schema-id"
    }  # fmt: skip


def spec_key(spec: Document) -> tuple[tuple[Any, str, str], ...]:
    """Returns a key that is equal for specs that Iceberg considers compatible."""
    return tuple((source_of(field), _transform(field), str(field.get("name"))) for field in _list(spec, "fields"))


def order_key(order: Document) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        (source_of(field), _transform(field), str(field.get("direction")).lower(), str(field.get("null-order")).lower())
        for field in _list(order, "fields")
    )


def source_of(field: Document) -> int | tuple[int, ...]:
    """Returns the id of the source column; version 3 may name several."""
    sources = field.get("source-ids")
    found = field.get("source-id")
    if isinstance(found, int):
        return found
    if isinstance(sources, list) and all(isinstance(number, int) for number in sources):
        return sources[0] if len(sources) == 1 else tuple(sources)
    raise InvalidCommit(f"a field without source-id: {str(field)[:200]}")


def _transform(field: Document) -> str:
    found = field.get("transform")
    if not isinstance(found, str):
        raise InvalidCommit(f"a field without transform: {str(field)[:200]}")
    return found.lower()


def check_sources(what: str, fields: Sequence[Document], schema: Document) -> None:
    """Raises `InvalidCommit` if a field's source column is missing, or its transform can't be applied to it."""
    known = {field["id"]: (path, source) for path, field, source in fields_of(schema)}
    model: Schema | None = None
    for field in fields:
        transform, source = parse_transform(_transform(field)), source_of(field)
        shown = f"{field.get('name', source)}: {field['transform']}({source})"
        if isinstance(transform, VoidTransform) or isinstance(source, tuple):
            continue
        if source not in known:
            raise InvalidCommit(f"Cannot find source column for {what} field: {shown}")
        path, is_source = known[source]
        if not is_source and what == "partition":
            raise InvalidCommit(f"Invalid partition field parent: {path} is inside a list or map: {shown}")
        model = model or parsed(schema)
        kind = None if model is None else model.find_type(source)
        if kind is not None and not isinstance(transform, UnknownTransform) and not _fits(transform, kind):
            raise InvalidCommit(f"Invalid source type {kind} for transform: {transform} of {what} field {shown}")


def _fits(transform: Any, kind: IcebergType) -> bool:
    return bool(transform.can_transform(kind))


def numbered_fields(spec: Document) -> list[Document]:
    """Returns the fields, in the form of metadata. Fields without id get the next ones."""
    last = FIRST_PARTITION_ID - 1
    numbered: list[Document] = []
    names: set[str] = set()
    for field in _list(spec, "fields"):
        number = field.get("field-id")
        last = max(last, number) if isinstance(number, int) else last + 1
        name = field.get("name")
        if not isinstance(name, str) or not name or name in names:
            raise InvalidCommit(f"Cannot use partition name more than once, or an empty one: {name!r}")
        names.add(name)
        numbered.append({**field, "field-id": number if isinstance(number, int) else last})
    return numbered


def reuse_or_number(
    documents: Sequence[Document], key: str, first: int, equal: Callable[[Document], bool]
) -> tuple[int, bool]:
    """Returns the id of the equal document and True, or the next free id and False."""
    number = first
    for document in documents:
        if equal(document):
            return int(document[key]), True
        number = max(number, document[key] + 1)
    return number, False


def _list(document: Mapping[str, Any], name: str) -> list[Document]:
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InvalidCommit(f"{name} is not a list of objects: {str(document)[:200]}")
    return found
