"""Debezium's envelope: ``before, after, source, transaction, op, ts_ms``, with and without its schema.

Everything that is constant for a table or a commit is encoded once, and a change is one concatenation: the rate of a
sink depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from astha.events import Commit, Event, Operation
from astha.version import version
from components.lib.change_formats.connect_schema import envelope_schema, key_schema
from components.lib.change_formats.contract import Message, Origin
from components.lib.change_formats.keys import KEY_ENCODERS
from registry.models import Row
from registry.position import Position

CONNECTOR = "astha"

_INSERT, _UPDATE = Operation.INSERT, Operation.UPDATE  # an attribute of an enumeration is slow
_encode = msgspec.json.Encoder().encode  # of a row: JSON columns stay text, as io.debezium.data.Json has it


class _TableParts(msgspec.Struct, frozen=True):
    """The constant parts of one table's messages."""

    key: Callable[[Row], bytes]
    head: bytes  # up to the value of `before`
    source: bytes  # after the value of `after`, up to the first field of `source` that varies
    tail: bytes


class _CommitParts(msgspec.Struct, frozen=True):
    """The constant parts of one commit's messages, around the number of the event."""

    commit: Commit
    source: bytes
    transaction: bytes


class DebeziumFormat:
    content_type = "application/json"

    def __init__(self, schemas: bool = False) -> None:
        self._schemas = schemas
        self._origin: Origin | None = None
        self._tables: dict[type[Row], _TableParts] = {}
        self._commit: _CommitParts | None = None
        self._orders: dict[type[Row], int] = {}  # events of the commit so far, by table
        self._index = -1  # of the last event
        self._now_ms = -1
        self._times = b""

    def change(self, event: Event[Row], origin: Origin, now_ms: int) -> Message:
        row, operation, index = event.data, event.operation, event.index
        kind = type(row)
        table = self._tables.get(kind) if origin is self._origin else None
        if table is None:
            table = self._table_parts(kind, origin)
        commit = self._commit
        if commit is None or commit.commit is not event.commit:
            commit = self._begin_commit(event.commit, origin)
        if operation is _INSERT:
            before, after, op = b"null", _encode(row), b"c"
        elif operation is _UPDATE:
            before, after, op = _encode(event.before), _encode(row), b"u"
        else:
            before, after, op = _encode(row), b"null", b"d"
        value = b'%b%b,"after":%b%b%b%d%b%d,"data_collection_order":%d},"op":"%b"%b%b' % (
            table.head, before, after, table.source, commit.source, index, commit.transaction, index + 1,
            self._order(kind, index), op, self._times if now_ms == self._now_ms else self._encode_times(now_ms),
            table.tail,
        )  # fmt: skip
        return Message(value, (), table.key(row))

    def snapshot_row(self, row: Row, position: Position, origin: Origin, now_ms: int, last: bool) -> Message:
        table = self._table_parts(type(row), origin)
        source = _source_fields(now_ms * 1000, b"last" if last else b"true", b"null", position, origin)
        value = b'%bnull,"after":%b%b%b,null]"},"transaction":null,"op":"r"%b%b' % (
            table.head, _encode(row), table.source, source,
            self._times if now_ms == self._now_ms else self._encode_times(now_ms), table.tail,
        )  # fmt: skip
        return Message(value, (), table.key(row))

    def key(self, row: Row, origin: Origin) -> bytes:
        return self._table_parts(type(row), origin).key(row)

    def tombstone(self, key: bytes) -> Message:
        return Message(None, (), key)

    def _table_parts(self, kind: type[Row], origin: Origin) -> _TableParts:
        if origin is not self._origin:
            if origin != self._origin:
                self._tables, self._commit = {}, None
            self._origin = origin
        parts = self._tables.get(kind)
        if parts is None:
            parts = self._tables[kind] = _table_parts(kind, origin, self._schemas)
        return parts

    def _begin_commit(self, commit: Commit, origin: Origin) -> _CommitParts:
        txid = b"%d" % commit.transaction
        source = _source_fields(commit.committed_at, b"false", txid, commit.position, origin)
        transaction = b'\\"]"},"transaction":{"id":"%b:%d","total_order":' % (txid, commit.position)
        self._commit = _CommitParts(commit, source + b',\\"', transaction)
        self._orders, self._index = {}, -1
        return self._commit

    def _order(self, kind: type[Row], index: int) -> int:
        """Returns the number of the event among those of its table in the commit, from 1. A lower index than before is
        a repeated delivery of the commit; the same index is the second part of an update of the key.
        """
        if index < self._index:
            self._orders = {}
        if index != self._index:
            self._orders[kind] = self._orders.get(kind, 0) + 1
        self._index = index
        return self._orders[kind]

    def _encode_times(self, now_ms: int) -> bytes:
        self._now_ms = now_ms
        self._times = b',"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (now_ms, now_ms * 1000, now_ms * 1_000_000)
        return self._times


def _source_fields(at_us: int, snapshot: bytes, txid: bytes, position: Position, origin: Origin) -> bytes:
    """Encodes the fields of `source` that vary, up to the second element of `sequence`: the index of the event."""
    return (
        b',"ts_ms":%d,"ts_us":%d,"ts_ns":%d,"snapshot":"%b","txId":%b,"lsn":%d,"epoch":%d,"sequence":"[\\"%d\\"'
    ) % (at_us // 1000, at_us, at_us * 1000, snapshot, txid, position, origin.epoch, position)


def _table_parts(kind: type[Row], origin: Origin, schemas: bool) -> _TableParts:
    schema = "main" if origin.database == "sqlite" else "public"
    source = (
        b',"source":{"version":%b,"connector":%b,"name":%b,"db":%b,"schema":%b,"table":%b'
    ) % tuple(
        _encode(text) for text in (version(), CONNECTOR, origin.name, origin.database, schema, kind.table)
    )  # fmt: skip
    encode_key = KEY_ENCODERS[kind]
    if not schemas:
        return _TableParts(encode_key, b'{"before":', source, b"}")
    key_head = b'{"schema":%b,"payload":' % _encode(key_schema(kind, origin.name))
    value_head = b'{"schema":%b,"payload":{"before":' % _encode(envelope_schema(kind, origin.name))
    return _TableParts(lambda row: b"%b%b}" % (key_head, encode_key(row)), value_head, source, b"}}")
