"""The change log, decoded: rows of the log in, whole transactions out. No I/O here.

JSON becomes the registry's models with nothing in between; a transaction that outgrows its limits keeps no events, only
the names of the tables it touched; tables nobody subscribes to are not decoded at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from astha.errors import ConfigError, DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from registry.models import PUBLISHED, Row
from registry.position import Position

log = logging.getLogger(__name__)

LogRow: TypeAlias = tuple[int, int | None, int, str, str, str | None, str | None]
"""sequence, transaction number, time in ms, table, operation, row before, row after"""
DecodeImage: TypeAlias = Callable[[str], Row]

_KINDS = {kind.table: kind for kind in PUBLISHED}
_INSERT, _UPDATE, _DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"
"""How many rows were ever written, whether or not they have been trimmed since."""

_SELECT = (
    "SELECT sequence, transaction_number, changed_at, table_name, operation, {}, {} "
    "FROM change_log WHERE sequence > ? ORDER BY sequence LIMIT ?"
)
HEADERS = _SELECT.format("NULL", "NULL")
"""Rows without their images."""


class LogDecoder:
    """Feed it the log in order; it answers transactions once their end is known.

    The end is the next transaction's first row, or the end of the log: a commit shows whole or not at all, so `finish`
    may be called whenever one snapshot has been read to its end. Consecutive rows without a number are one transaction;
    its number is the negative of its first sequence, which no announced one can be.

    A row without images, or with images that can't be decoded, stops nobody: its table becomes `unlisted`, so that who
    subscribes to it refreshes.
    """

    def __init__(self, tables: frozenset[str], limits: TransactionLimits) -> None:
        unknown = sorted(tables - _KINDS.keys())
        if unknown:
            raise ConfigError(f"not published, so there is nothing to subscribe to: {', '.join(unknown)}")
        self.statement = _statement(tables)
        self.reached: Position | None = None  # where the last complete transaction ends, whosever tables it touched
        self.complaint: str | None = None  # about the last row that could not be decoded
        self._limits = limits
        self._decoders = {table: image_decoder(_KINDS[table]) for table in tables}
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction."""
        self._commit: Commit | None = None
        self._number: int | None = None
        self._last: LogRow | None = None
        self._events: list[Event[Row]] = []
        self._tables: set[str] = set()
        self._unlisted: set[str] = set()
        self._size = 0
        self._oversized = False

    @property
    def oversized(self) -> bool:
        """The open transaction keeps no events any more: `HEADERS` are enough to follow it."""
        return self._oversized

    def continues(self, row: LogRow) -> bool:
        """Whether the open transaction goes on with this row."""
        return self._commit is not None and row[1] == self._number

    def feed(self, rows: Iterable[LogRow]) -> list[Transaction]:
        """The transactions that these rows complete, but for those that touched nothing subscribed to."""
        done: list[Transaction] = []
        commit, number, last, decoders = self._commit, self._number, self._last, self._decoders
        for row in rows:
            if commit is None or row[1] != number:
                self._last = last
                done += self.finish()
                commit, number = self._begin(row), row[1]
            last = row
            table = row[3]
            decode = decoders.get(table)
            if decode is None:
                continue
            self._tables.add(table)
            if self._oversized:
                continue
            try:
                operation, data, before, size = decode_images(row, decode)
            except DecodeError as error:
                self._pass_over(row, error)
                continue
            events = self._events
            events.append(Event(operation, data, before, commit, len(events)))
            self._size += size
            if self._size > self._limits.size_bytes or len(events) > self._limits.events:
                self._oversized = True
                self._events = []
        self._last = last
        return done

    def finish(self) -> list[Transaction]:
        """The log ended here: the open transaction, if there is one that anybody subscribes to."""
        commit, last = self._commit, self._last
        if commit is None or last is None:
            return []
        commit.position = self.reached = Position(last[0])
        commit.committed_at = last[2] * 1000
        commit.count = len(self._events)
        unlisted = self._tables if self._oversized else self._unlisted
        tables, events, size = self._tables, self._events, self._size
        self.reset()
        return [Transaction(commit, events, frozenset(tables), size, frozenset(unlisted))] if tables else []

    def _begin(self, row: LogRow) -> Commit:
        sequence, number, changed_at = row[:3]
        self._number = number
        self._commit = Commit(-sequence if number is None else number, Position(sequence), changed_at * 1000)
        return self._commit

    def _pass_over(self, row: LogRow, error: DecodeError) -> None:
        self._unlisted.add(row[3])
        self.complaint = str(error)
        log.warning("who subscribes to %s has to refresh: %s", row[3], error)


def decode_images(row: LogRow, decode: DecodeImage) -> tuple[Operation, Row, Row | None, int]:
    """Operation, row, row before, size of both. DecodeError, naming row and column, if an image is missing, is one too
    many or is not what its model needs.
    """
    sequence, _, _, table, operation, before, after = row
    try:
        if before is None:
            if after is not None and operation == _INSERT:
                return _INSERT, decode(after), None, len(after)
        elif after is None:
            if operation == _DELETE:
                gone = decode(before)
                return _DELETE, gone, gone, len(before)
        elif operation == _UPDATE:
            return _UPDATE, decode(after), decode(before), len(before) + len(after)
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise DecodeError(f"change {sequence}, {operation} of {table}: {error}") from error
    raise DecodeError(f"change {sequence}, {operation} of {table}: rows before and after are not what that needs")


def image_decoder(kind: type[Row]) -> DecodeImage:
    """Columns that the model does not know are ignored.

    Not strict, because SQLite's booleans are 0 and 1. Its tables are strict, so nothing else profits from that.
    """
    return msgspec.json.Decoder(kind, strict=False).decode


def _statement(tables: frozenset[str]) -> str:
    if tables == _KINDS.keys():
        return _SELECT.format("before", "after")
    # Images that nobody wants are not even loaded.
    listed = ", ".join(f"'{table}'" for table in sorted(tables))
    return _SELECT.format(*(f"CASE WHEN table_name IN ({listed}) THEN {image} END" for image in ("before", "after")))
