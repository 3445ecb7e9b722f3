"""Partitioning and sort order as users write them: ``day(ts)``, ``bucket(16, id)``, ``name desc nulls first``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, parse_transform
from pyiceberg.types import NestedField

from components.lib.lake.schema.table_schema import SchemaProblem, check_partition, read_order
from components.lib.lake.schema.type_syntax import SyntaxProblem

_TIMES = {"years": "year", "months": "month", "days": "day", "hours": "hour"}  # Spark's names
_CALL = re.compile(r"(?P<function>\w+)\s*\(\s*(?P<arguments>[^()]*)\)")
_ALIAS = re.compile(r"(?P<term>.+?)\s+as\s+(?P<name>\S+)", re.IGNORECASE)
_DIRECTION = re.compile(r"(?P<term>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE)
_MAX_CHARACTERS = 2_000
_EXAMPLES = "column, year(ts), month(ts), day(ts), hour(ts), bucket(16, id) or truncate(10, name)"


def partition_of(texts: Sequence[str], schema: Schema) -> PartitionSpec:
    if not texts:
        return UNPARTITIONED_PARTITION_SPEC
    fields: list[PartitionField] = []
    taken: dict[tuple[int, str], str] = {}
    for place, text in enumerate(texts):
        _check_length(text, "partition_by")
        alias = _ALIAS.fullmatch(text.strip())
        column, transform = _term(alias.group("term") if alias else text.strip(), schema, "partition_by")
        key = (column.field_id, transform.dedup_name)
        if key in taken:
            raise SyntaxProblem(f"partition_by {text!r} is redundant with {taken[key]!r}: keep the finer one")
        taken[key] = text
        name = alias.group("name") if alias else partition_name(schema, column, transform)
        fields.append(PartitionField(column.field_id, PARTITION_FIELD_ID_START + place, transform, name))
    spec = PartitionSpec(*fields, spec_id=0)
    try:
        check_partition(spec, schema)
    except SchemaProblem as problem:
        hint = "; `day(ts) as NAME` names a field otherwise" if "name" in str(problem) else ""
        raise SyntaxProblem(f"{problem}{hint}") from problem
    return spec


def partition_name(schema: Schema, column: NestedField, transform: Transform[Any, Any]) -> str:
    """Returns the name that Iceberg gives a partition field."""
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


def show_partition(field: PartitionField, schema: Schema) -> str:
    """Returns the text that `partition_of` reads."""
    column = schema.find_field(field.source_id)
    text = _show_term(field.transform, schema.find_column_name(field.source_id) or column.name)
    return text if field.name == partition_name(schema, column, field.transform) else f"{text} as {field.name}"


def show_order(field: SortField, schema: Schema) -> str:
    """Returns the text that `order_of` reads."""
    text = _show_term(field.transform, schema.find_column_name(field.source_id) or str(field.source_id))
    ascending = field.direction is SortDirection.ASC
    usual = NullOrder.NULLS_FIRST if ascending else NullOrder.NULLS_LAST
    nulls = "" if field.null_order is usual else f" {field.null_order.value.replace('-', ' ')}"
    return f"{text}{'' if ascending else ' desc'}{nulls}"


def _show_term(transform: Transform[Any, Any], column: str) -> str:
    match transform:
        case IdentityTransform():
            return column
        case BucketTransform():
            return f"bucket({transform.num_buckets}, {column})"
        case TruncateTransform():
            return f"truncate({transform.width}, {column})"
        case _:
            return f"{transform}({column})"


def order_of(texts: Sequence[str], schema: Schema) -> SortOrder:
    """Reads ``ts desc``, ``id``, ``name asc nulls last``. By default NULLs sort as the smallest value."""
    if not texts:
        return UNSORTED_SORT_ORDER
    fields = []
    for text in texts:
        _check_length(text, "sort_by")
        match = _DIRECTION.fullmatch(text.strip())
        if match is None:
            raise SyntaxProblem(f"sort_by {text!r}: write COLUMN [asc|desc] [nulls first|last]")
        column, transform = _term(match.group("term"), schema, "sort_by")
        way = SortDirection((match.group("way") or "asc").lower())
        nulls = (match.group("nulls") or ("first" if way is SortDirection.ASC else "last")).lower()
        fields.append(SortField(column.field_id, transform, way, NullOrder(f"nulls-{nulls}")))
    try:
        return read_order([entry.model_dump(mode="json") for entry in fields], schema)
    except SchemaProblem as problem:
        raise SyntaxProblem(str(problem)) from problem


def _check_length(text: str, key: str) -> None:
    """Parsing may take time quadratic in the length."""
    if len(text) > _MAX_CHARACTERS:
        raise SyntaxProblem(f"{key} {text[:40]!r}...: has {len(text):,} characters, the most is {_MAX_CHARACTERS:,}")


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
        raise SyntaxProblem(f"{key} {text!r} is not understood: write {_EXAMPLES}")
    transform = parse_transform(f"{function}[{numbers[0]}]" if numbers else function)
    column = _source(names[0], schema, f"{key} {text!r}")
    if not transform.can_transform(column.field_type):
        raise SyntaxProblem(f"{key} {text!r}: {function} does not work on {names[0]}, which is a {column.field_type}")
    return column, transform


def _source(name: str, schema: Schema, shown: str) -> NestedField:
    try:
        column = schema.find_field(name.strip("`"))
    except ValueError as error:
        columns = ", ".join(column.name for column in schema.fields)
        raise SyntaxProblem(f"{shown}: there is no column {name!r} among {columns}") from error
    if not column.field_type.is_primitive:
        raise SyntaxProblem(f"{shown}: {name} is a {column.field_type}: only a single value can be used here")
    return column
