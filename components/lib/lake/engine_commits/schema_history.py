"""PyIceberg's objects for the schemas and partition specs of a table's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import msgspec
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import Document, IcebergMetadata
from components.lib.lake.engine_commits.schema_documents import parsed, source_of
from components.lib.lake.iceberg.schema_updates import SchemaHistory
from components.lib.lake.schema.table_schema import known_columns


class ParsedSchemas(SchemaHistory):
    """Columns of types that PyIceberg does not know are left out: no partition can depend on them."""

    def __init__(self, metadata: IcebergMetadata) -> None:
        self._metadata = metadata

    @cached_property
    def _schemas(self) -> list[Schema]:
        return [_schema(msgspec.json.encode(schema)) for schema in self._metadata.schemas]

    @property
    def schemas(self) -> Sequence[Schema]:
        return self._schemas

    def schema(self) -> Schema:
        return _schema(msgspec.json.encode(self._metadata.schema))

    def specs(self) -> dict[int, PartitionSpec]:
        return {spec["spec-id"]: _spec(msgspec.json.encode(spec)) for spec in self._metadata.partition_specs}


@lru_cache(maxsize=1024)
def _schema(document: bytes) -> Schema:
    schema: Document = msgspec.json.decode(document)
    return parsed(schema) or known_columns(schema)


@lru_cache(maxsize=1024)
def _spec(document: bytes) -> PartitionSpec:
    spec: Document = msgspec.json.decode(document)
    for field in spec["fields"]:
        source = source_of(field)
        if isinstance(source, tuple):
            raise InvalidCommit(f"partition field {field.get('name')!r} has several source columns")
        field["source-id"] = source
    return PartitionSpec.model_validate(spec)
