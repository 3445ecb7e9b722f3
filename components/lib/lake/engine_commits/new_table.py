"""The metadata of a table that a client creates: ids are assigned by the server, whatever the client has sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from components.lib.lake.engine_commits.errors import InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import UNSORTED, Document, IcebergMetadata
from components.lib.lake.engine_commits.metadata_builder import DEFAULT_VERSION, MetadataBuilder
from components.lib.lake.engine_commits.schema_documents import check_schema, fields_of, source_of
from components.lib.lake.engine_commits.updates import (
    AddSchema,
    AddSortOrder,
    AddSpec,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
)

FORMAT_VERSION = "format-version"
_DEFAULT_PROPERTIES = {"write.parquet.compression-codec": "zstd"}
"""Iceberg's library sets it for each new table."""

_COMMIT_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)


class CreateRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """The body of a request that creates a table, or stages its creation."""

    name: str
    schema: Document
    location: str | None = None
    partition_spec: Document | None = None
    write_order: Document | None = None
    stage_create: bool = False
    properties: dict[str, str] | None = None

    @classmethod
    def parse(cls, body: bytes) -> CreateRequest:
        """Raises `InvalidCommit`."""
        try:
            return _request.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidCommit(f"not a request that creates a table: {error}") from error

    def metadata(self, location: str, *, now_ms: int) -> IcebergMetadata:
        """Returns the table's first version, without stamp. A staged one is sent to the client and not stored."""
        properties = {**_DEFAULT_PROPERTIES, **(self.properties or {})}
        _check_properties(properties)
        builder = MetadataBuilder(None, now_ms=now_ms, format_version=_format_version(properties))
        check_schema(self.schema, _format_version(properties))
        names = {field["id"]: path for path, field, _ in fields_of(self.schema)}
        schema = with_fresh_ids(self.schema)
        ids = {path: field["id"] for path, field, _ in fields_of(schema)}
        builder.apply(AddSchema(schema))
        builder.apply(SetCurrentSchema(-1))
        spec = _rebound(self.partition_spec or {"fields": []}, names, ids)
        for field in spec["fields"]:
            field.pop("field-id", None)
        builder.apply(AddSpec(spec))
        builder.apply(SetDefaultSpec(-1))
        builder.apply(AddSortOrder(_rebound(self.write_order or UNSORTED, names, ids)))
        builder.apply(SetDefaultSortOrder(-1))
        builder.apply(SetLocation(location))
        builder.apply(SetProperties(properties))
        return builder.build(None)


_request = msgspec.json.Decoder(CreateRequest)


def with_fresh_ids(schema: Document) -> Document:
    """Numbers the columns from 1: all of one level before those inside them, as Iceberg's library does."""
    numbers = count(1)
    ids: dict[int, int] = {}

    def numbered(old: int) -> int:
        ids[old] = next(numbers)
        return ids[old]

    fields = _fresh_fields(schema["fields"], numbered)
    identifiers = [ids[number] for number in schema.get("identifier-field-ids") or ()]
    fresh: Document = {"type": "struct", "schema-id": 0, "fields": fields}
    return {**fresh, "identifier-field-ids": identifiers} if identifiers else fresh


def _fresh_fields(fields: list[Document], numbered: Callable[[int], int]) -> list[Document]:
    ids = [numbered(field["id"]) for field in fields]
    return [
        {**field, "id": number, "type": _fresh_type(field["type"], numbered)}
        for number, field in zip(ids, fields, strict=True)
    ]


def _fresh_type(kind: Any, numbered: Callable[[int], int]) -> Any:
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return {**kind, "fields": _fresh_fields(kind["fields"], numbered)}
        case "list":
            number = numbered(kind["element-id"])
            return {**kind, "element-id": number, "element": _fresh_type(kind["element"], numbered)}
        case _:
            key, value = numbered(kind["key-id"]), numbered(kind["value-id"])
            return {
                **kind,
                "key-id": key,
                "value-id": value,
                "key": _fresh_type(kind["key"], numbered),
                "value": _fresh_type(kind["value"], numbered),
            }


def _rebound(document: Document, names: Mapping[int, str], ids: Mapping[str, int]) -> Document:
    """Returns the spec or sort order with the new ids of its source columns."""
    fields = document.get("fields")
    if not isinstance(fields, list):
        raise InvalidCommit(f"fields is not a list: {str(document)[:200]}")
    rebound = []
    for field in fields:
        source = source_of(field)
        if isinstance(source, tuple) or source not in names:
            raise InvalidCommit(f"Cannot find source column: {str(field)[:200]}")
        rebound.append({key: value for key, value in field.items() if key != "source-ids"})
        rebound[-1]["source-id"] = ids[names[source]]
    return {**document, "fields": rebound}


def _format_version(properties: Mapping[str, str]) -> int:
    text = properties.get(FORMAT_VERSION, str(DEFAULT_VERSION))
    if not text.isascii() or not text.isdigit():
        raise InvalidCommit(f"{FORMAT_VERSION} = {text!r} is not a number")
    return int(text)


def _check_properties(properties: Mapping[str, str]) -> None:
    for name in _COMMIT_PROPERTIES:
        text = properties.get(name, "0")
        if not text.isascii() or not text.isdigit():
            raise InvalidCommit(f"Table property {name} must have non negative integer value")
