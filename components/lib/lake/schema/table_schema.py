"""A table's schema version as typed objects: parsed from the registry's JSON, and written back to it.

The JSON is Iceberg's own (decision 0010). `table_definition` reads the form that users write; `evolution` derives one
version from the previous one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec, validate_partition_name
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, UnknownTransform
from pyiceberg.types import DecimalType, DoubleType, FixedType, IcebergType, ListType, MapType, NestedField, StructType

from astha.errors import AsthaError
from registry.inputs import TableDraft
from registry.json_text import EMPTY_OBJECT, JsonText, parse_json, to_json_text
from registry.models import TableMetadata

FORMAT_VERSION = 2
"""The Iceberg format version of every table that is written here."""

FORMAT_VERSION_PROPERTY = "format-version"
"""The property of a table that another engine created with, or upgraded to, another format version."""

BY_ENGINES = "iceberg"
"""The storage engine of versions that other engines have made through the catalog."""

_MAX_FIELD_ID = 2**31 - 201  # Iceberg reserves higher ids for its metadata columns
_MAX_PARAMETER = 2**31 - 1

Fields: TypeAlias = list[dict[str, Any]]


class SchemaProblem(AsthaError):
    """A schema that cannot be read, written or evolved to. The message names the table or column, and the way out."""


@dataclass(frozen=True)
class TableSchema:
    """One version. Columns are identified by their field ids: names may change, ids never do."""

    version: int
    iceberg: Schema
    partition: PartitionSpec
    order: SortOrder
    format: str = "parquet"
    compression: str = "zstd"
    unwritable: str | None = None
    """The reason why only other engines can write rows with this version."""

    @classmethod
    def read(cls, metadata: TableMetadata, *, table: str | None = None) -> TableSchema:
        """Parses a version to read with it: also one of another engine, with types or transforms that can't be written
        here. Then `unwritable` is set. Raises `SchemaProblem` if it is not a schema at all.
        """
        try:
            return cls.of(metadata, table=table)
        except SchemaProblem as problem:
            iceberg = known_columns(parse_json(metadata.schema))
            return cls(
                metadata.schema_version,
                iceberg,
                _spec(parse_json(metadata.partition_by)),
                _order(parse_json(metadata.sort_by)),
                metadata.format,
                metadata.compression,
                str(problem),
            )

    @classmethod
    def of(cls, metadata: TableMetadata, *, table: str | None = None) -> TableSchema:
        """Parses and checks a version to write with it. ``table`` is a name for messages; the row has only an id."""
        try:
            _check_format_version(parse_json(metadata.properties))
            iceberg = read_schema(parse_json(metadata.schema))
            return cls(
                metadata.schema_version,
                iceberg,
                read_partition(parse_json(metadata.partition_by), iceberg),
                read_order(parse_json(metadata.sort_by), iceberg),
                metadata.format,
                metadata.compression,
            )
        except SchemaProblem as problem:
            name = f"table {table}" if table else f"table with id {metadata.table_id}"
            raise SchemaProblem(f"{name}, schema version {metadata.schema_version}: {problem}") from problem

    @cached_property
    def _arrow(self) -> pa.Schema:
        return schema_to_pyarrow(self.iceberg)

    def arrow(self) -> pa.Schema:
        """Returns the Arrow schema, with ``PARQUET:field_id`` on every field, nested ones included."""
        return self._arrow

    def draft(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        storage_engine: str | None = None,
        engine_config: JsonText = EMPTY_OBJECT,
    ) -> TableDraft:
        """Returns the version in its stored form. ``storage_engine`` defaults to the format."""
        return TableDraft(
            schema=write_schema(self.iceberg),
            storage_engine=storage_engine or self.format,
            engine_config=engine_config,
            format=self.format,
            compression=self.compression,
            partition_by=to_json_text([field.model_dump(mode="json") for field in self.partition.fields]),
            sort_by=to_json_text([field.model_dump(mode="json") for field in self.order.fields]),
            properties=to_json_text(dict(properties or {})),
        )


def read_schema(document: object) -> Schema:
    if (
        not isinstance(document, dict)
        or document.get("type") != "struct"
        or not isinstance(document.get("fields"), list)
    ):
        raise SchemaProblem('not an Iceberg schema: it must be {"type": "struct", "fields": [...]}')
    # A schema's own id belongs to Iceberg's metadata; it is not the registry's version.
    content = {key: document[key] for key in ("type", "fields", "identifier-field-ids") if key in document}
    try:
        schema = Schema.model_validate(content)
    except (ValidationError, IcebergValidationError, ValueError, KeyError, TypeError) as error:
        raise SchemaProblem(f"not an Iceberg schema: {validation_message(error)}") from error
    check_fields(schema.fields)
    return schema


def write_schema(schema: Schema) -> JsonText:
    content = schema.model_dump(mode="json", exclude={"schema_id"})
    if not content.get("identifier-field-ids"):
        content.pop("identifier-field-ids", None)
    return to_json_text(content, "schema")


def known_columns(document: object) -> Schema:
    """Returns the schema of another engine, without columns of types that PyIceberg does not know."""
    if not isinstance(document, dict) or not isinstance(document.get("fields"), list):
        raise SchemaProblem('not an Iceberg schema: it must be {"type": "struct", "fields": [...]}')
    known = [field for field in document["fields"] if _is_known(field)]
    ids = {number for field in known for number in _model([field], []).field_ids}
    identifiers = [number for number in document.get("identifier-field-ids") or () if number in ids]
    return _model(known, identifiers)


def _is_known(field: object) -> bool:
    try:
        _model([field], [])
    except (ValidationError, IcebergValidationError, ValueError, KeyError, TypeError):
        return False
    return True


def _model(fields: list[Any], identifiers: list[int]) -> Schema:
    return Schema.model_validate({"type": "struct", "fields": fields, "identifier-field-ids": identifiers})


def read_partition(document: object, schema: Schema) -> PartitionSpec:
    spec = _spec(document)
    if spec.fields:
        check_partition(spec, schema)
    return spec


def _spec(document: object) -> PartitionSpec:
    try:
        fields = [PartitionField(**field) for field in _objects(document, "partition_by")]
    except (ValidationError, IcebergValidationError, ValueError, TypeError) as error:
        raise SchemaProblem(f"partition_by: {validation_message(error)}") from error
    return PartitionSpec(*fields, spec_id=0) if fields else UNPARTITIONED_PARTITION_SPEC


def read_order(document: object, schema: Schema) -> SortOrder:
    order = _order(document)
    try:
        for field in order.fields:
            _check_transform(field.transform, f"sort_by of the column with id {field.source_id}")
        order.check_compatible(schema)
    except (ValidationError, IcebergValidationError, ValueError, TypeError) as error:
        raise SchemaProblem(f"sort_by: {validation_message(error)}") from error
    return order


def _order(document: object) -> SortOrder:
    try:
        fields = [SortField(**_with_null_order(field)) for field in _objects(document, "sort_by")]
    except (ValidationError, IcebergValidationError, ValueError, TypeError) as error:
        raise SchemaProblem(f"sort_by: {validation_message(error)}") from error
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _check_format_version(properties: object) -> None:
    """Versions that another engine has made name a format version other than the usual one."""
    found = properties.get(FORMAT_VERSION_PROPERTY) if isinstance(properties, dict) else None
    if found is not None and str(found) != str(FORMAT_VERSION):
        raise SchemaProblem(
            f"the table has Iceberg's format version {found}, and only version {FORMAT_VERSION} is written here: "
            "insert with the engine that created it"
        )


def check_fields(fields: Iterable[NestedField]) -> None:
    """Raises `SchemaProblem` for duplicate ids and for what needs a later Iceberg version."""
    names: dict[int, str] = {}
    for path, field in walk(fields):
        if not 0 < field.field_id <= _MAX_FIELD_ID:
            raise SchemaProblem(f"column {path}: id {field.field_id} is not between 1 and {_MAX_FIELD_ID}")
        if field.field_id in names:
            raise SchemaProblem(f"column {path}: id {field.field_id} is that of {names[field.field_id]}")
        names[field.field_id] = path
        if not field.name:
            raise SchemaProblem(f"the column with id {field.field_id} has no name")
        check_type(path, field.field_type)
        if field.initial_default is not None or field.write_default is not None:
            raise SchemaProblem(f"column {path}: default values need Iceberg v3; tables here are v{FORMAT_VERSION}")


def check_type(path: str, kind: IcebergType) -> None:
    """Checks the type itself, not the types nested in it."""
    if kind.minimum_format_version() > FORMAT_VERSION:
        raise SchemaProblem(
            f"column {path}: type {kind} needs Iceberg v{kind.minimum_format_version()}; tables here are "
            f"v{FORMAT_VERSION}: use timestamp or timestamptz (microseconds), string or binary"
        )
    if isinstance(kind, DecimalType) and not 0 <= kind.scale <= kind.precision:
        raise SchemaProblem(f"column {path}: {kind} has more digits after the point than digits")
    if isinstance(kind, FixedType) and len(kind) < 1:
        raise SchemaProblem(f"column {path}: {kind} holds nothing: give it at least one byte")


def check_partition(spec: PartitionSpec, schema: Schema) -> None:
    names: set[str] = set()
    ids: set[int] = set()
    for field in spec.fields:
        shown = f"partition field {field.name!r}"
        if field.name in names or field.field_id in ids:
            raise SchemaProblem(f"{shown}: its name or id {field.field_id} appears twice")
        _check_transform(field.transform, shown)
        try:
            validate_partition_name(field.name, field.transform, field.source_id, schema, names)
        except ValueError as error:
            raise SchemaProblem(f"{shown}: {validation_message(error)}") from error
        names.add(field.name)
        ids.add(field.field_id)
    try:
        spec.check_compatible(schema)
    except IcebergValidationError as error:
        raise SchemaProblem(f"partition_by: {validation_message(error)}") from error
    for field in spec.fields:
        # PyIceberg 0.12.0 reads a manifest's doubles in single precision (apache/iceberg-python#3808), and would write
        # what it has read into the next manifest.
        if isinstance(field.transform, IdentityTransform) and isinstance(schema.find_type(field.source_id), DoubleType):
            raise SchemaProblem(
                f"partition field {field.name!r}: a double can't be a partition's value: choose another column"
            )


def walk(fields: Iterable[NestedField], above: str = "") -> Iterable[tuple[str, NestedField]]:
    """Yields every field with its dotted path, outer fields first."""
    for field in fields:
        path = f"{above}{field.name}"
        yield path, field
        yield from walk(inner_fields(field.field_type), f"{path}.")


def inner_fields(kind: IcebergType) -> tuple[NestedField, ...]:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
        case _:
            return ()


def validation_message(error: Exception) -> str:
    """Returns the first message of a validation error, without links and input."""
    if not isinstance(error, ValidationError):
        return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _check_transform(transform: object, shown: str) -> None:
    if isinstance(transform, UnknownTransform):
        raise SchemaProblem(
            f"{shown}: unknown transform: use identity, year, month, day, hour, bucket[N] or truncate[N]"
        )
    number = 1
    if isinstance(transform, BucketTransform):
        number = transform.num_buckets
    elif isinstance(transform, TruncateTransform):
        number = transform.width
    if not 1 <= number <= _MAX_PARAMETER:
        raise SchemaProblem(f"{shown}: {transform}: the number must be between 1 and {_MAX_PARAMETER}")


def _with_null_order(field: dict[str, Any]) -> dict[str, Any]:
    """PyIceberg's default is wrong if the direction is given as text."""
    order = "nulls-last" if field.get("direction") == "desc" else "nulls-first"
    return {"direction": "asc", "null-order": order, **field}


def _objects(document: object, name: str) -> Fields:
    if not isinstance(document, list) or not all(isinstance(field, dict) for field in document):
        raise SchemaProblem(f"{name} is not a list of objects")
    return document
