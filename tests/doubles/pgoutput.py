"""pgoutput messages, made by hand: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from sqlalchemy import Column as SqlColumn
from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql

from registry.models import Row
from registry.schema import table_of

INT2, INT4, INT8, BOOL, TEXT, JSON, UUID, JSONB = 21, 23, 20, 16, 25, 114, 2950, 3802

_OIDS = {"BIGINT": INT8, "INTEGER": INT4, "BOOLEAN": BOOL, "TEXT": TEXT, "JSON": JSON}

Column: TypeAlias = tuple[str, int]


class Unchanged:
    """A TOASTed value that an UPDATE did not change."""


class InText:
    """A value in text form, as the server sends types without a binary form."""

    def __init__(self, value: str) -> None:
        self.value = value


def data(body: bytes) -> bytes:
    """Wraps a message in XLogData."""
    return b"w" + struct.pack(">QQq", 0, 0, 0) + body


def begin(xid: int, position: int = 1_000, committed_at: int = 0) -> bytes:
    return data(b"B" + struct.pack(">QqI", position, committed_at, xid))


def commit(position: int = 1_000, end: int | None = None) -> bytes:
    return data(b"C" + struct.pack(">BQQq", 0, position, position + 8 if end is None else end, 0))


def relation(
    oid: int, name: str, columns: Sequence[Column], *, schema: str = "public", identity: bytes = b"f"
) -> bytes:
    body = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0" + identity
    body += struct.pack(">h", len(columns))
    for column, type_oid in columns:
        body += b"\1" + column.encode() + b"\0" + struct.pack(">Ii", type_oid, -1)
    return data(body)


def columns_of(kind: type[Row]) -> list[Column]:
    """Returns the columns of the registry's table."""
    return [(column.name, _OIDS[_spelt(column)]) for column in table_of(kind).columns]


def _spelt(column: SqlColumn[object]) -> str:
    dialect: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return column.type.compile(dialect).partition(" ")[0]


def insert(oid: int, row: Sequence[object]) -> bytes:
    return data(b"I" + struct.pack(">I", oid) + b"N" + encoded(row))


def update(oid: int, before: Sequence[object], row: Sequence[object], *, kind: bytes = b"O") -> bytes:
    return data(b"U" + struct.pack(">I", oid) + kind + encoded(before) + b"N" + encoded(row))


def update_without_old(oid: int, row: Sequence[object]) -> bytes:
    return data(b"U" + struct.pack(">I", oid) + b"N" + encoded(row))


def delete(oid: int, row: Sequence[object], *, kind: bytes = b"O") -> bytes:
    return data(b"D" + struct.pack(">I", oid) + kind + encoded(row))


def truncate(*oids: int) -> bytes:
    return data(b"T" + struct.pack(">IB", len(oids), 0) + struct.pack(f">{len(oids)}I", *oids))


def encoded(values: Sequence[object]) -> bytes:
    return struct.pack(">h", len(values)) + b"".join(_value(value) for value in values)


class Wide(int):
    """An int of eight bytes; a plain int has four."""


def _value(value: object) -> bytes:
    match value:
        case None:
            return b"n"
        case Unchanged():
            return b"u"
        case InText():
            return b"t" + _sized(value.value.encode())
        case bool():
            return b"b" + _sized(struct.pack(">?", value))
        case Wide():
            return b"b" + _sized(struct.pack(">q", value))
        case int():
            return b"b" + _sized(struct.pack(">i", value))
        case bytes():
            return b"b" + _sized(value)
        case _:
            return b"b" + _sized(str(value).encode())


def _sized(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def values_of(row: Row, changes: Mapping[str, object] | None = None) -> list[object]:
    """Returns a row's columns, with the widths of the registry's table."""
    widths = dict(columns_of(type(row)))
    found: list[object] = []
    for name, value in msgspec.structs.asdict(row).items():
        chosen = (changes or {}).get(name, value)
        if isinstance(chosen, int) and not isinstance(chosen, bool) and widths[name] == INT8:
            chosen = Wide(chosen)
        found.append(chosen)
    return found
