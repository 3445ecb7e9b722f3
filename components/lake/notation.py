"""A table as people define it: columns, `day(ts)`, `ts desc`, in a file or on a command line.

Everything ends in a `TableSchema` whose ids are given; nothing of the notation is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, parse_transform
from pyiceberg.types import NestedField

from astha import strict_yaml
from astha.errors import ConfigError
from components.lake.schema import SchemaProblem, TableSchema, check_partition, read_order, read_schema
from components.lake.types import UNNUMBERED, NotationProblem, number, parse_column, parse_type
from registry.documents import Document

_KEYS = {"columns", "partition_by", "sort_by", "format", "compression", "properties", "location"}
_COLUMN_KEYS = {"name", "type", "required", "doc"}
_TIMES = {"years": "year", "months": "month", "days": "day", "hours": "hour"}  # as Spark has them
_CALL = re.compile(r"(?P<function>\w+)\s*\(\s*(?P<arguments>[^()]*)\)")
_ALIAS = re.compile(r"(?P<term>.+?)\s+as\s+(?P<name>\S+)", re.IGNORECASE)
_DIRECTION = re.compile(r"(?P<term>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE)
_EXAMPLES = "column, year(ts), month(ts), day(ts), hour(ts), bucket(16, id) or truncate(10, name)"


@dataclass(frozen=True)
class Definition:
    """What somebody wants a table to be. ``columns`` without ids, or a schema that has its own."""

    columns: Sequence[NestedField] | Schema = ()
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    format: str = "parquet"
    compression: str = "zstd"
    properties: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None

    def schema(self) -> TableSchema:
        """Version 1, with ids."""
        if isinstance(self.columns, Schema):
            columns = self.columns
        else:
            ids = count(1)
            columns = Schema(*number(self.columns, lambda: next(ids)))
        if not columns.fields:
            raise NotationProblem("a table needs at least one column, such as id: long!")
        partition = partition_of(self.partition_by, columns)
        order = order_of(self.sort_by, columns)
        return TableSchema(1, columns, partition, order, self.format, self.compression)


def read_definition(file: Path) -> Definition:
    """From YAML or JSON: `columns` and the rest, or Iceberg's own schema as it is."""
    try:
        return parse_definition(strict_yaml.parse(strict_yaml.read_text(file)).content)
    except NotationProblem as problem:
        raise NotationProblem(f"{file}: {problem}") from problem
    except ConfigError as error:
        shown = str(error)
        raise NotationProblem(shown if shown.startswith(str(file)) else f"{file}: {shown}") from error


def parse_definition(content: object) -> Definition:
    if not isinstance(content, dict):
        raise NotationProblem("a table's definition is a mapping: columns: {id: long!, ...}, partition_by: [...], ...")
    if content.get("type") == "struct":
        return Definition(columns=_iceberg(content))
    unknown = [str(key) for key in content if key not in _KEYS]
    if unknown:
        raise NotationProblem(f"{unknown[0]!r} is not known here: there are {', '.join(sorted(_KEYS))}")
    given: dict[str, Any] = {key: content[key] for key in ("format", "compression", "location") if key in content}
    for key, value in given.items():
        if not isinstance(value, str) or not value:
            raise NotationProblem(f"{key}: {value!r} is not a text")
    return Definition(
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
        raise NotationProblem("columns are missing: write columns: {id: long!, ...}")
    return [_listed(entry) for entry in content]


def _iceberg(content: dict[str, Any]) -> Schema:
    try:
        return read_schema(content)
    except NotationProblem:
        raise
    except SchemaProblem as problem:
        raise NotationProblem(str(problem)) from problem


def _listed(entry: object) -> NestedField:
    if isinstance(entry, str):
        return parse_column(entry)
    if isinstance(entry, dict) and "name" in entry and "type" in entry:
        return _column(entry["name"], entry)
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, wanted),) = entry.items()
        return _column(name, wanted)
    raise NotationProblem(f"column {entry!r}: write it as id: long! or {{name: id, type: long, required: true}}")


def _column(name: object, wanted: object) -> NestedField:
    """YAML reads a bare ``no`` or ``2024`` as something else than a text."""
    if not isinstance(name, str):
        raise NotationProblem(f"column {name!r}: a name is a text: put it in quotes")
    required, doc = False, None
    if isinstance(wanted, dict):
        unknown = [str(key) for key in wanted if key not in _COLUMN_KEYS]
        if unknown or "type" not in wanted:
            raise NotationProblem(f"column {name}: write a type, or {{type: ..., required: true, doc: ...}}")
        required, doc, wanted = wanted.get("required", False), wanted.get("doc"), wanted["type"]
        if not isinstance(required, bool) or not isinstance(doc, str | None):
            raise NotationProblem(f"column {name}: required is true or false, and doc a text")
    if not isinstance(wanted, str):
        raise NotationProblem(f"column {name}: its type {wanted!r} is not a text such as long!")
    kind, marked = parse_type(wanted, name)
    return NestedField(UNNUMBERED, name, kind, required=required or marked, doc=doc)


def _texts(content: dict[str, Any], key: str) -> list[str]:
    value = content.get(key) or []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise NotationProblem(f"{key} is a list of texts, such as [day(ts), region]")
    return texts


def _properties(content: object) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise NotationProblem("properties are a mapping from names to texts")
    texts = {}
    for name, value in content.items():
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        else:
            raise NotationProblem(f"property {name}: {value!r} is not a text")
    return texts


def partition_of(texts: Sequence[str], schema: Schema) -> PartitionSpec:
    if not texts:
        return UNPARTITIONED_PARTITION_SPEC
    fields: list[PartitionField] = []
    taken: dict[tuple[int, str], str] = {}
    for place, text in enumerate(texts):
        alias = _ALIAS.fullmatch(text.strip())
        column, transform = _term(alias.group("term") if alias else text.strip(), schema, "partition_by")
        key = (column.field_id, transform.dedup_name)
        if key in taken:
            raise NotationProblem(f"partition_by {text!r} adds nothing to {taken[key]!r}: keep the finer one")
        taken[key] = text
        name = alias.group("name") if alias else partition_name(schema, column, transform)
        fields.append(PartitionField(column.field_id, PARTITION_FIELD_ID_START + place, transform, name))
    spec = PartitionSpec(*fields, spec_id=0)
    try:
        check_partition(spec, schema)
    except SchemaProblem as problem:
        hint = "; `day(ts) as NAME` names a field otherwise" if "name" in str(problem) else ""
        raise NotationProblem(f"{problem}{hint}") from problem
    return spec


def partition_name(schema: Schema, column: NestedField, transform: Transform[Any, Any]) -> str:
    """As Iceberg names them."""
    source = schema.find_column_name(column.field_id) or column.name
    match transform:
        case IdentityTransform():
            return source
        case BucketTransform():
            return f"{source}_bucket_{transform.num_buckets}"
        case TruncateTransform():
            return f"{source}_trunc_{transform.width}"
        case _:
            return f"{source}_{transform}"


def order_of(texts: Sequence[str], schema: Schema) -> SortOrder:
    """``ts desc``, ``id``, ``name asc nulls last``: NULLs are smallest unless it is said."""
    if not texts:
        return UNSORTED_SORT_ORDER
    fields = []
    for text in texts:
        match = _DIRECTION.fullmatch(text.strip())
        if match is None:
            raise NotationProblem(f"sort_by {text!r}: write COLUMN [asc|desc] [nulls first|last]")
        column, transform = _term(match.group("term"), schema, "sort_by")
        way = SortDirection((match.group("way") or "asc").lower())
        nulls = (match.group("nulls") or ("first" if way is SortDirection.ASC else "last")).lower()
        fields.append(SortField(column.field_id, transform, way, NullOrder(f"nulls-{nulls}")))
    try:
        return read_order(Document.of([entry.model_dump(mode="json") for entry in fields]).load(), schema)
    except SchemaProblem as problem:
        raise NotationProblem(str(problem)) from problem


def _term(text: str, schema: Schema, key: str) -> tuple[NestedField, Transform[Any, Any]]:
    call = _CALL.fullmatch(text)
    if call is None:
        return _source(text, schema, f"{key} {text!r}"), IdentityTransform()
    function = call.group("function").lower()
    arguments = [argument.strip() for argument in call.group("arguments").split(",")]
    numbers = [argument for argument in arguments if argument.isascii() and argument.isdigit()]
    names = [argument for argument in arguments if argument not in numbers]
    function = _TIMES.get(function, function)
    parameter = {"bucket": 1, "truncate": 1, "year": 0, "month": 0, "day": 0, "hour": 0, "identity": 0}.get(function)
    if parameter is None or len(numbers) != parameter or len(names) != 1:
        raise NotationProblem(f"{key} {text!r} is not understood: write {_EXAMPLES}")
    transform = parse_transform(f"{function}[{numbers[0]}]" if numbers else function)
    column = _source(names[0], schema, f"{key} {text!r}")
    if not transform.can_transform(column.field_type):
        raise NotationProblem(f"{key} {text!r}: {function} does not work on {names[0]}, which is a {column.field_type}")
    return column, transform


def _source(name: str, schema: Schema, shown: str) -> NestedField:
    try:
        column = schema.find_field(name.strip("`"))
    except ValueError as error:
        columns = ", ".join(column.name for column in schema.fields)
        raise NotationProblem(f"{shown}: there is no column {name!r} among {columns}") from error
    if not column.field_type.is_primitive:
        raise NotationProblem(f"{shown}: {name} is a {column.field_type}: only a single value can be used here")
    return column
