"""Kafka Connect schemas of the registry's tables, in the JSON form that its JsonConverter reads.

The types are those that Debezium's PostgreSQL connector derives from the same columns: a time is a bigint column, so it
is an int64 in milliseconds since the epoch, and no logical type.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, Text

from registry.models import Row
from registry.schema import BooleanType, JsonTextType, table_of

ConnectSchema = dict[str, Any]

SNAPSHOT_VALUES = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def key_schema(kind: type[Row], stream: str) -> ConnectSchema:
    columns = table_of(kind).c
    return _struct([_column(columns[name]) for name in kind.key], name=f"{stream}.{kind.table}.Key")


def envelope_schema(kind: type[Row], stream: str) -> ConnectSchema:
    """The schema of a change. Readers recognize it by its name, which ends in ``.Envelope``."""
    columns = table_of(kind).c
    fields = [_column(columns[name]) for name in kind.__struct_fields__]
    row = _struct(fields, optional=True, name=f"{stream}.{kind.table}.Value")
    return _struct(
        [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {**_source(), "field": "source"},
            {**_transaction(), "field": "transaction"},
            _field("op", "string"),
            *(_field(name, "int64", optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
        ],
        name=f"{stream}.{kind.table}.Envelope",
        version=2,
    )


def _source() -> ConnectSchema:
    snapshot = {
        **_field("snapshot", "string", optional=True),
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": SNAPSHOT_VALUES},
        "default": "false",
    }
    return _struct(
        [
            *(_field(name, "string") for name in ("version", "connector", "name")),
            _field("ts_ms", "int64"),
            snapshot,
            _field("db", "string"),
            _field("sequence", "string", optional=True),
            *(_field(name, "int64", optional=True) for name in ("ts_us", "ts_ns")),
            *(_field(name, "string") for name in ("schema", "table")),
            *(_field(name, "int64", optional=True) for name in ("txId", "lsn")),
            _field("epoch", "int64"),
        ],
        name="astha.Source",
        version=1,
    )


def _transaction() -> ConnectSchema:
    fields = [_field("id", "string"), _field("total_order", "int64"), _field("data_collection_order", "int64")]
    return _struct(fields, optional=True, name="event.block", version=1)


def _column(column: Column[Any]) -> ConnectSchema:
    name, nullable = str(column.name), bool(column.nullable)
    match column.type:
        case JsonTextType():
            field = _field(name, "string", optional=nullable)
            return {**field, "name": "io.debezium.data.Json", "version": 1}
        case BooleanType():
            return _field(name, "boolean", optional=nullable)
        case BigInteger():
            return _field(name, "int64", optional=nullable)
        case Integer():
            return _field(name, "int32", optional=nullable)
        case Text():
            return _field(name, "string", optional=nullable)
    raise TypeError(f"column {column} has type {column.type!r}, and no Kafka Connect type is chosen for it")


def _field(name: str, type_: str, *, optional: bool = False) -> ConnectSchema:
    return {"type": type_, "optional": optional, "field": name}


def _struct(
    fields: list[ConnectSchema], *, name: str, optional: bool = False, version: int | None = None
) -> ConnectSchema:
    schema: ConnectSchema = {"type": "struct", "fields": fields, "optional": optional, "name": name}
    return schema if version is None else {**schema, "version": version}
