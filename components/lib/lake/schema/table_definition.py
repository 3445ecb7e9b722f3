"""A table's definition as users write it, in a file or on the command line.

It becomes a `TableSchema` with ids; the text itself is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from astha import strict_yaml
from astha.errors import ConfigError
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema, read_schema
from components.lib.lake.schema.transform_syntax import order_of, partition_of
from components.lib.lake.schema.type_syntax import UNNUMBERED, SyntaxProblem, number, parse_column, parse_type

_KEYS = {"columns", "partition_by", "sort_by", "format", "compression", "properties", "location"}
_COLUMN_KEYS = {"name", "type", "required", "doc"}


@dataclass(frozen=True)
class TableDefinition:
    """``columns`` are without ids, or an Iceberg schema with its own ids."""

    columns: Sequence[NestedField] | Schema = ()
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    format: str = "parquet"
    compression: str = "zstd"
    properties: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None

    def schema(self) -> TableSchema:
        """Returns version 1, with ids."""
        if isinstance(self.columns, Schema):
            columns = self.columns
        else:
            ids = count(1)
            columns = Schema(*number(self.columns, lambda: next(ids)))
        if not columns.fields:
            raise SyntaxProblem("a table needs at least one column, such as id: long!")
        partition = partition_of(self.partition_by, columns)
        order = order_of(self.sort_by, columns)
        return TableSchema(1, columns, partition, order, self.format, self.compression)


def read_definition(file: Path) -> TableDefinition:
    """Reads YAML or JSON: a definition with `columns`, or an Iceberg schema."""
    try:
        return parse_definition(strict_yaml.parse(strict_yaml.read_text(file)).content)
    except SyntaxProblem as problem:
        raise SyntaxProblem(f"{file}: {problem}") from problem
    except ConfigError as error:
        shown = str(error)
        raise SyntaxProblem(shown if shown.startswith(str(file)) else f"{file}: {shown}") from error


def parse_definition(content: object) -> TableDefinition:
    if not isinstance(content, dict):
        raise SyntaxProblem("a table's definition is a mapping: columns: {id: long!, ...}, partition_by: [...], ...")
    if content.get("type") == "struct":
        return TableDefinition(columns=_iceberg(content))
    unknown = [str(key) for key in content if key not in _KEYS]
    if unknown:
        raise SyntaxProblem(f"{unknown[0]!r} is not a key of a definition: known are {', '.join(sorted(_KEYS))}")
    given: dict[str, Any] = {key: content[key] for key in ("format", "compression", "location") if key in content}
    for key, value in given.items():
        if not isinstance(value, str) or not value:
            raise SyntaxProblem(f"{key}: {value!r} is not a text")
    return TableDefinition(
        columns=_columns(content.get("columns")),
        partition_by=_texts(content, "partition_by"),
        sort_by=_texts(content, "sort_by"),
        properties=_properties(content.get("properties", {})),
        **given,
    )


def _columns(content: object) -> Sequence[NestedField] | Schema:
    if isinstance(content, dict):
        if content.get("type") == "struct" and isinstance(content.get("fields"), list):
            return _iceberg(content)
        return [_column(name, wanted) for name, wanted in content.items()]
    if not isinstance(content, list):
        raise SyntaxProblem("columns are missing: write columns: {id: long!, ...}")
    return [_listed(entry) for entry in content]


def _iceberg(content: dict[str, Any]) -> Schema:
    try:
        return read_schema(content)
    except SyntaxProblem:
        raise
    except SchemaProblem as problem:
        raise SyntaxProblem(str(problem)) from problem


def _listed(entry: object) -> NestedField:
    if isinstance(entry, str):
        return parse_column(entry)
    if isinstance(entry, dict) and "name" in entry and "type" in entry:
        return _column(entry["name"], entry)
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, wanted),) = entry.items()
        return _column(name, wanted)
    raise SyntaxProblem(f"column {entry!r}: write it as id: long! or {{name: id, type: long, required: true}}")


def _column(name: object, wanted: object) -> NestedField:
    """YAML reads a bare ``no`` or ``2024`` as a boolean or a number."""
    if not isinstance(name, str):
        raise SyntaxProblem(f"column {name!r}: a name is a text: put it in quotes")
    required, doc = False, None
    if isinstance(wanted, dict):
        unknown = [str(key) for key in wanted if key not in _COLUMN_KEYS]
        if unknown or "type" not in wanted:
            raise SyntaxProblem(f"column {name}: write a type, or {{type: ..., required: true, doc: ...}}")
        required, doc, wanted = wanted.get("required", False), wanted.get("doc"), wanted["type"]
        if not isinstance(required, bool) or not isinstance(doc, str | None):
            raise SyntaxProblem(f"column {name}: required is true or false, and doc a text")
    if not isinstance(wanted, str):
        raise SyntaxProblem(f"column {name}: its type {wanted!r} is not a text such as long!")
    kind, marked = parse_type(wanted, name)
    return NestedField(UNNUMBERED, name, kind, required=required or marked, doc=doc)


def _texts(content: dict[str, Any], key: str) -> list[str]:
    value = content.get(key) or []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SyntaxProblem(f"{key} is a list of texts, such as [day(ts), region]")
    return texts


def _properties(content: object) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise SyntaxProblem("properties are a mapping from names to texts")
    texts = {}
    for name, value in content.items():
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        else:
            raise SyntaxProblem(f"property {name}: {value!r} is not a text")
    return texts
