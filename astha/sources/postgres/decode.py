"""Decodes pgoutput: CopyData payloads in, whole transactions out. No I/O.

Each message is one call of `feed`. Rows are decoded directly to the registry's models. A transaction beyond its limits
keeps no rows, only the names of its tables. Tables without a subscriber are not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeAlias

import structlog

from astha.errors import DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.row_decoder import (
    DecodeRow,
    Relation,
    RowDecoders,
    compile_decoders,
    complete,
    parse_relation,
    too_long,
)
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
_B, _C, _I = b"BCI"

_NONE: frozenset[str] = frozenset()

log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[bytes], None]


class Decoder:
    """Takes messages in order; `feed` returns a transaction when one is complete."""

    def __init__(self, kinds: Mapping[str, type[Row]], schema: str = "public", limits: TransactionLimits | None = None):
        self._kinds = kinds
        self._schema = schema
        limits = limits or TransactionLimits()
        self._max_events, self._max_bytes = limits.events, limits.size_bytes
        self._inserts: dict[bytes, Callable[[bytes], Row]] = {}  # by kind byte and relation oid
        self._rows: dict[bytes, Handler] = {}  # the same for all other kinds
        self._tables_of: dict[bytes, str] = {}
        self._table_sets: dict[frozenset[bytes], frozenset[str]] = {}
        self._names: dict[int, str] = {}
        self._commit: Commit | None = None
        self._heads: set[bytes] = set()
        self._unlisted: set[str] = set()
        self._reset_transaction()

    @property
    def in_transaction(self) -> bool:
        return self._commit is not None

    def feed(self, message: bytes) -> Transaction | None:
        """Takes a whole CopyData payload of kind 'w'. Raises DecodeError if it is not valid pgoutput."""
        try:
            kind = message[HEADER]
            if kind == _I:  # most messages are inserts: no further call
                head = message[HEADER:_ROW]
                insert = self._inserts.get(head)
                if insert is not None:
                    row = insert(message)
                    events = self._events
                    commit = self._commit
                    if commit is None:
                        raise _stray(head)
                    self._heads.add(head)
                    if not self._oversized:
                        events.append(Event(_INSERT, row, None, commit, len(events)))
                        self._size += len(message)
                        if self._size > self._max_bytes or len(events) > self._max_events:
                            self._drop_events()
                    return None
            elif kind == _B:
                self._begin(message)
                return None
            elif kind == _C:
                return self._end(message)
            handler = self._rows.get(message[HEADER:_ROW])
            if handler is not None:
                handler(message)
                return None
            self._other(message)
            return None
        except (struct.error, IndexError, ValueError, TypeError) as error:
            raise DecodeError(f"a message of kind {message[HEADER:_BODY]!r} can't be decoded: {error}") from error

    def _other(self, message: bytes) -> None:
        kind = message[HEADER:_BODY]
        if kind == b"R":
            self._relate(parse_relation(message, _BODY))
        elif kind == b"T":
            self._truncate(message)
        elif kind in (b"I", b"U", b"D"):
            (oid,) = struct.unpack_from(">I", message, _BODY)
            if oid not in self._names:
                raise DecodeError(f"a row of relation {oid}, which was never described")
        elif kind not in (b"O", b"Y", b"M"):  # origin, type, logical message: not used
            raise DecodeError(f"unknown message kind {kind!r}")

    def _reset_transaction(self) -> None:
        self._events: list[Event[Row]] = []
        self._heads.clear()
        self._size = 0
        self._unlisted.clear()
        self._oversized = False

    def _begin(self, message: bytes) -> None:
        if self._commit is not None:
            raise DecodeError("a transaction begins inside another")
        position, committed_at, xid = _BEGIN(message, _BODY)
        self._commit = Commit(xid, Position(position), committed_at + POSTGRES_EPOCH_US)

    def _end(self, message: bytes) -> Transaction:
        commit = self._commit
        if commit is None:
            raise DecodeError("a commit without a begin")
        _, position, end, _ = _COMMIT(message, _BODY)
        if position != commit.position or end < position:
            raise DecodeError(f"commit at {position:#x}, but its begin announced {commit.position:#x}")
        commit.position = Position(end)  # the end of the commit record: the position to acknowledge
        commit.count = len(self._events)
        heads = frozenset(self._heads)
        tables = self._table_sets.get(heads)
        if tables is None:
            tables = self._table_sets[heads] = frozenset(self._tables_of[head] for head in heads)
        unlisted = _NONE
        if self._unlisted or self._oversized:
            tables |= self._unlisted
            unlisted = tables if self._oversized else frozenset(self._unlisted)
        done = Transaction(commit, self._events, tables, self._size, unlisted)
        self._commit = None
        self._reset_transaction()
        return done

    def _relate(self, relation: Relation) -> None:
        oid = struct.pack(">I", relation.oid)
        self._table_sets.clear()
        kind = self._kinds.get(relation.name) if relation.schema == self._schema else None
        self._names[relation.oid] = relation.name if kind is not None else ""
        for letter in (b"I", b"U", b"D"):
            self._inserts.pop(letter + oid, None)
            self._rows[letter + oid] = _ignore
            self._tables_of[letter + oid] = relation.name
        if kind is not None:
            if relation.identity != "f":
                log.warning(
                    "table does not send complete old rows: each UPDATE and DELETE causes a refresh",
                    table=relation.name,
                    remedy=f"ALTER TABLE {relation.name} REPLICA IDENTITY FULL",
                )
            decoders = compile_decoders(kind, relation, _ROW + 1)
            self._inserts[b"I" + oid] = decoders.insert
            self._rows[b"U" + oid] = self._updater(b"U" + oid, kind.table, decoders)
            self._rows[b"D" + oid] = self._deleter(b"D" + oid, kind.table, decoders.old)

    def _add(self, head: bytes, operation: Operation, data: Row, before: Row, size: int) -> None:
        if self._commit is None:
            raise _stray(head)
        self._heads.add(head)
        if not self._oversized:
            self._events.append(Event(operation, data, before, self._commit, len(self._events)))
            self._size += size
            if self._size > self._max_bytes or len(self._events) > self._max_events:
                self._drop_events()

    def _mark_unlisted(self, head: bytes, table: str) -> None:
        """A change without its old row can't become an event, so the table's subscribers refresh."""
        if self._commit is None:
            raise _stray(head)
        self._unlisted.add(table)

    def _drop_events(self) -> None:
        """The transaction is beyond its limits: only the names of its tables are kept."""
        self._oversized = True
        self._events = []

    def _updater(self, head: bytes, table: str, decoders: RowDecoders) -> Handler:
        decode_old, decode_new = decoders.old, decoders.new

        def update(message: bytes) -> None:
            if message[_ROW] in (_NEW, _KEY):
                self._mark_unlisted(head, table)
                return
            if message[_ROW] != _OLD:
                raise DecodeError("an UPDATE with neither an old row nor a new one")
            before, offset = decode_old(message, _ROW + 1)
            if message[offset] != _NEW:
                raise DecodeError("an UPDATE without a new row")
            row, end = decode_new(message, offset + 1)
            if end != len(message):
                raise too_long(message, end)
            self._add(head, _UPDATE, complete(row, before), before, end)

        return update

    def _deleter(self, head: bytes, table: str, decode: DecodeRow) -> Handler:
        def delete(message: bytes) -> None:
            if message[_ROW] == _KEY:
                self._mark_unlisted(head, table)
                return
            if message[_ROW] != _OLD:
                raise DecodeError("a DELETE without an old row")
            row, end = decode(message, _ROW + 1)
            if end != len(message):
                raise too_long(message, end)
            self._add(head, _DELETE, row, row, end)

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
                self._unlisted.add(name)


def _ignore(message: bytes) -> None:
    """For tables without a subscriber."""


def _stray(head: bytes) -> DecodeError:
    return DecodeError(f"a row of kind {head[:1]!r} outside a transaction")
