"""pgoutput, decoded: CopyData payloads in, whole transactions out. No I/O here.

One message is one `feed`. Rows become the registry's models straight from the bytes; a transaction that outgrows its
limits keeps no rows, only the names of the tables it touched; tables nobody subscribes to are not decoded at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeAlias

from astha.errors import DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.relations import DecodeRow, Relation, compile_decoder, complete, parse_relation
from registry.models import Row
from registry.position import Position

HEADER = 25  # of XLogData: 'w', start, end, clock
_BODY = HEADER + 1
_ROW = _BODY + 4

POSTGRES_EPOCH_US = 946_684_800_000_000

_BEGIN = struct.Struct(">QqI").unpack_from
_COMMIT = struct.Struct(">BQQq").unpack_from
_TRUNCATE = struct.Struct(">IB").unpack_from

_INSERT, _UPDATE, _DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE
_NEW, _OLD, _KEY = b"NOK"

Handler: TypeAlias = Callable[[bytes], None]


class Decoder:
    """Feed it messages in order; `feed` answers a transaction when one is complete."""

    def __init__(self, kinds: Mapping[str, type[Row]], schema: str = "public", limits: TransactionLimits | None = None):
        self._kinds = kinds
        self._schema = schema
        self._limits = limits or TransactionLimits()
        self._rows: dict[bytes, Handler] = {}  # kind byte and relation oid -> what to do
        self._names: dict[int, str] = {}
        self._commit: Commit | None = None
        self._reset_transaction()

    @property
    def in_transaction(self) -> bool:
        return self._commit is not None

    def feed(self, message: bytes) -> Transaction | None:
        """A whole CopyData payload of kind 'w'. DecodeError for anything that is not pgoutput."""
        handler = self._rows.get(message[HEADER:_ROW])
        try:
            if handler is not None:
                handler(message)
                return None
            return self._other(message)
        except (struct.error, IndexError, ValueError, TypeError) as error:
            raise DecodeError(f"a message of kind {message[HEADER:_BODY]!r} that can't be read: {error}") from error

    def _other(self, message: bytes) -> Transaction | None:
        kind = message[HEADER:_BODY]
        if kind == b"C":
            return self._end(message)
        if kind == b"B":
            self._begin(message)
        elif kind == b"R":
            self._relate(parse_relation(message, _BODY))
        elif kind == b"T":
            self._truncate(message)
        elif kind in (b"I", b"U", b"D"):
            (oid,) = struct.unpack_from(">I", message, _BODY)
            if oid not in self._names:
                raise DecodeError(f"a row of relation {oid}, which was never described")
        elif kind not in (b"O", b"Y", b"M"):  # origin, type, logical message: nothing for us
            raise DecodeError(f"unknown message kind {kind!r}")
        return None

    def _reset_transaction(self) -> None:
        self._events: list[Event[Row]] = []
        self._tables: set[str] = set()
        self._size = 0
        self._unlisted: set[str] = set()
        self._oversized = False

    def _begin(self, message: bytes) -> None:
        if self._commit is not None:
            raise DecodeError("a transaction begins inside another")
        position, committed_at, xid = _BEGIN(message, _BODY)
        self._commit = Commit(xid, Position(position), committed_at + POSTGRES_EPOCH_US)

    def _end(self, message: bytes) -> Transaction:
        commit = self._commit
        if commit is None:
            raise DecodeError("a commit without a beginning")
        _, position, end, _ = _COMMIT(message, _BODY)
        if position != commit.position or end < position:
            raise DecodeError(f"commit at {position:#x}, but its beginning announced {commit.position:#x}")
        commit.position = Position(end)  # where the stream goes on: what is acknowledged
        commit.count = len(self._events)
        unlisted = frozenset(self._unlisted | self._tables if self._oversized else self._unlisted)
        done = Transaction(commit, self._events, frozenset(self._tables), self._size, unlisted)
        self._commit = None
        self._reset_transaction()
        return done

    def _relate(self, relation: Relation) -> None:
        oid = struct.pack(">I", relation.oid)
        self._names[relation.oid] = relation.name
        kind = self._kinds.get(relation.name) if relation.schema == self._schema else None
        if kind is None:
            for letter in (b"I", b"U", b"D"):
                self._rows[letter + oid] = _ignore
            return
        decode = compile_decoder(kind, relation)
        self._rows[b"I" + oid] = self._inserter(kind.table, decode)
        self._rows[b"U" + oid] = self._updater(kind.table, decode)
        self._rows[b"D" + oid] = self._deleter(kind.table, decode)

    def _add(self, table: str, operation: Operation, data: Row, before: Row | None, size: int) -> None:
        commit = self._commit
        if commit is None:
            raise DecodeError(f"a row of {table} outside a transaction")
        self._tables.add(table)
        if self._oversized:
            return
        self._events.append(Event(operation, data, before, commit, len(self._events)))
        self._size += size
        if len(self._events) > self._limits.events or self._size > self._limits.size_bytes:
            self._oversized = True
            self._events = []

    def _inserter(self, table: str, decode: DecodeRow) -> Handler:
        add = self._add

        def insert(message: bytes) -> None:
            if message[_ROW] != _NEW:
                raise DecodeError("an INSERT without a new row")
            row, end = decode(message, _ROW + 1)
            _require_end(message, end)
            add(table, _INSERT, row, None, end)

        return insert

    def _updater(self, table: str, decode: DecodeRow) -> Handler:
        add = self._add

        def update(message: bytes) -> None:
            before: Row | None = None
            offset = _ROW
            if message[offset] == _OLD:
                before, offset = decode(message, offset + 1)
            elif message[offset] == _KEY:
                raise _not_full(table)
            if message[offset] != _NEW:
                raise DecodeError("an UPDATE without a new row")
            row, end = decode(message, offset + 1)
            _require_end(message, end)
            if before is None:
                raise _not_full(table)
            add(table, _UPDATE, complete(row, before), before, end)

        return update

    def _deleter(self, table: str, decode: DecodeRow) -> Handler:
        add = self._add

        def delete(message: bytes) -> None:
            if message[_ROW] != _OLD:
                raise _not_full(table)
            row, end = decode(message, _ROW + 1)
            _require_end(message, end)
            add(table, _DELETE, row, row, end)

        return delete

    def _truncate(self, message: bytes) -> None:
        if self._commit is None:
            raise DecodeError("a TRUNCATE outside a transaction")
        count, _options = _TRUNCATE(message, _BODY)
        for oid in struct.unpack_from(f">{count}I", message, _BODY + 5):
            name = self._names.get(oid)
            if name is None:
                raise DecodeError(f"TRUNCATE of relation {oid}, which was never described")
            if name in self._kinds:
                self._tables.add(name)
                self._unlisted.add(name)


def _ignore(message: bytes) -> None:
    """A table that nobody subscribes to."""


def _require_end(message: bytes, end: int) -> None:
    if end != len(message):
        raise DecodeError(f"a row that ends at byte {end} of {len(message)}")


def _not_full(table: str) -> DecodeError:
    return DecodeError(
        f"table {table} sends keys instead of whole old rows: its replica identity is no longer FULL, "
        f"run `ALTER TABLE {table} REPLICA IDENTITY FULL`"
    )
