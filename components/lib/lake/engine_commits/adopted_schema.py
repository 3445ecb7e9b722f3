"""The schema versions of the registry for the schema, partition spec and sort order that an engine has committed.

Everything is stored as Iceberg's metadata has it, also what can't be written here: `TableSchema.read` parses it for
readers, `TableSchema.of` refuses it with the reason before rows are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from components.lib.lake.engine_commits.iceberg_metadata import Document, IcebergMetadata
from components.lib.lake.engine_commits.metadata_builder import settable
from components.lib.lake.engine_commits.schema_documents import order_key, same_schema, source_of, spec_key
from components.lib.lake.schema.table_schema import BY_ENGINES, FORMAT_VERSION, FORMAT_VERSION_PROPERTY
from registry.inputs import TableDraft
from registry.json_text import parse_json, parse_json_as, to_json_text
from registry.models import TableMetadata


def needs_version(base: IcebergMetadata | None, metadata: IcebergMetadata) -> bool:
    """Returns whether columns, partitioning, order or format version differ."""
    return base is None or not (
        base.format_version == metadata.format_version
        and same_schema(base.schema, metadata.schema)
        and spec_key(base.spec) == spec_key(metadata.spec)
        and order_key(base.sort_order) == order_key(metadata.sort_order)
    )


def adopted_version(
    metadata: IcebergMetadata, base: IcebergMetadata | None = None, previous: TableMetadata | None = None
) -> TableDraft:
    """Returns the version for the current state. ``previous`` is the table's newest version, if it has one: its
    properties are kept, and change by what the commit has changed.
    """
    known = {} if previous is None else parse_json_as(previous.properties, dict[str, object])
    properties = changed_properties(known, {} if base is None else base.properties, metadata.properties)
    properties.pop(FORMAT_VERSION_PROPERTY, None)
    if metadata.format_version != FORMAT_VERSION:
        properties[FORMAT_VERSION_PROPERTY] = str(metadata.format_version)
    schema: Document = {"type": "struct", "fields": metadata.schema["fields"]}
    if metadata.schema.get("identifier-field-ids"):
        schema["identifier-field-ids"] = metadata.schema["identifier-field-ids"]
    return TableDraft(
        schema=to_json_text(schema, "schema"),
        storage_engine=BY_ENGINES,
        partition_by=to_json_text([_with_source(field) for field in metadata.spec["fields"]], "partition_by"),
        sort_by=to_json_text([_with_source(field) for field in metadata.sort_order["fields"]], "sort_by"),
        properties=to_json_text(properties, "properties"),
    )


def changed_properties(
    registered: Mapping[str, object], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, object]:
    """Returns the registry's properties with the change that a commit has made to Iceberg's.

    Iceberg's properties that Astha sets for itself, and those that it has had before the registry knew, stay out.
    """
    old, new = settable(before), settable(after)
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    return {name: value for name, value in {**registered, **changed}.items() if name not in old or name in new}


def versions_by_spec(metadata: IcebergMetadata, versions: Iterable[TableMetadata]) -> dict[int, int]:
    """Returns the newest schema version for each partition spec that one of the versions has."""
    newest: dict[object, int] = {}
    for row in sorted(versions, key=lambda row: row.schema_version):
        fields = parse_json(row.partition_by)
        if isinstance(fields, list):
            newest[spec_key({"fields": fields})] = row.schema_version
    return {spec["spec-id"]: newest[spec_key(spec)] for spec in metadata.partition_specs if spec_key(spec) in newest}


def _with_source(field: Document) -> Document:
    """Version 3 names the source column in a list."""
    source = source_of(field)
    if isinstance(source, tuple):
        return {**field, "source-id": source[0]}
    return {**{key: value for key, value in field.items() if key != "source-ids"}, "source-id": source}
