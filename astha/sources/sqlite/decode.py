"""Decodes the change log: rows of the log in, whole transactions out. No I/O.

JSON is decoded directly to the registry's models. A transaction beyond its limits keeps no events, only the names of
its tables. Tables without a subscriber are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec
import structlog

from astha.errors import ConfigError, DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from registry.models import PUBLISHED, Row
from registry.position import Position

log = structlog.get_logger(__name__)

LogRow: TypeAlias = tuple[int, int | None, int, str, str, str | None, str | None]
"""sequence, transaction number, time in ms, table, operation, row before, row after"""
DecodeImage: TypeAlias = Callable[[str], Row]

_KINDS = {kind.table: kind for kind in PUBLISHED}
_INSERT, _UPDATE, _DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"
"""Number of rows ever written, including trimmed ones."""

_SELECT = (
    "SELECT sequence, transaction_number, changed_at, table_name, operation, {}, {} "
    "FROM change_log WHERE sequence > ? ORDER BY sequence LIMIT ?"
)
HEADERS = _SELECT.format("NULL", "NULL")
"""Rows without their images."""


class LogDecoder:
    """Takes the log in order and returns each transaction once its end is known.

    The end is the next transaction's first row, or the end of the log: a snapshot contains whole commits, so `finish`
    may be called whenever one snapshot has been read to its end. Consecutive rows without a number are one transaction;
    its number is the negative of its first sequence, which no announced number can be.

    A row without images, or with images that can't be decoded, does not stop the stream: its table becomes `unlisted`,
    so that the table's subscribers refresh.
    """

    def __init__(self, tables: frozenset[str], limits: TransactionLimits) -> None:
        unknown = sorted(tables - _KINDS.keys())
        if unknown:
            raise ConfigError(f"tables are not published, so they can't be subscribed to: {', '.join(unknown)}")
        self.statement = _statement(tables)
        self.reached: Position | None = None  # end of the last complete transaction, subscribed or not
        self.decode_error: str | None = None  # of the last row that could not be decoded
        self._limits = limits
        self._decoders = {table: image_decoder(_KINDS[table]) for table in tables}
        self.reset()

    def reset(self) -> None:
        """Discards the open transaction."""
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
        """Whether the open transaction is beyond its limits and keeps no events: `HEADERS` suffice to follow it."""
        return self._oversized

    def continues(self, row: LogRow) -> bool:
        """Returns whether this row belongs to the open transaction."""
        return self._commit is not None and row[1] == self._number

    def feed(self, rows: Iterable[LogRow]) -> list[Transaction]:
        """Returns the transactions with subscribed tables that these rows complete."""
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
                self._skip(row, error)
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
        """Call at the end of the log. Returns the open transaction, if it has subscribed tables."""
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

    def _skip(self, row: LogRow, error: DecodeError) -> None:
        self._unlisted.add(row[3])
        self.decode_error = str(error)
        log.warning("change can't be decoded: its subscribers refresh", table=row[3], error=str(error))


def decode_images(row: LogRow, decode: DecodeImage) -> tuple[Operation, Row, Row | None, int]:
    """Returns operation, row, row before, and the size of both. Raises DecodeError, which names row and column, if the
    images do not fit the operation or the model.
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
    raise DecodeError(f"change {sequence}, {operation} of {table}: its images do not fit the operation")


def image_decoder(kind: type[Row]) -> DecodeImage:
    """Ignores columns that the model does not have.

    Not strict, because SQLite's booleans are 0 and 1. Its tables are strict, so other types are not affected.
    """
    return msgspec.json.Decoder(kind, strict=False).decode


def _statement(tables: frozenset[str]) -> str:
    if tables == _KINDS.keys():
        return _SELECT.format("before", "after")
    # Images of other tables are not even loaded.
    listed = ", ".join(f"'{table}'" for table in sorted(tables))
    return _SELECT.format(*(f"CASE WHEN table_name IN ({listed}) THEN {image} END" for image in ("before", "after")))
