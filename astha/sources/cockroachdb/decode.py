"""Decodes a changefeed: its rows in, whole transactions out. No I/O.

A changefeed sends each change as JSON, with the timestamp of its commit: in order per row, but in no order between
rows, and any of them again. A *resolved* mark says that every change up to its timestamp has been sent. So changes are
kept by commit until a mark passes it; then each commit is whole, and all of them are in order.

The changes of one commit have no order of their own. They are put into one that is the same every time: see `_rank`.

Transactions that wait for each other may commit within one nanosecond, told apart by the logical counter only. A
position is the nanosecond of its commit, or the next one that is free after the commit before. That is the same
whenever the history is read, if reading begins `LOOKBACK_NS` earlier and counts the commits of *all* published tables.
The number of a transaction is its nanosecond: a snapshot contains all commits of a nanosecond or none.

Transactions that change different rows may have the very same timestamp. A changefeed does not tell them apart, so they
are one transaction here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec
import structlog

from astha.errors import ConfigError, DecodeError
from astha.events import Commit, Event, Operation, Transaction
from astha.sources.limits import TransactionLimits
from registry.errors import Invalid
from registry.hlc import parse_timestamp, resolved_position
from registry.models import PUBLISHED, IcebergCommit, LakeTable, Row, Segment
from registry.position import Position

log = structlog.get_logger(__name__)

R = TypeVar("R")
Change: TypeAlias = tuple[Operation, Row, "Row | None"]

_KINDS = {kind.table: kind for kind in PUBLISHED}
_INSERT, _UPDATE, _DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

LOOKBACK_NS = 1_000_000
"""Before the position from which changes are wanted: no position is further from its commit's time."""

_COMMIT_BYTES = 200
"""Memory of a commit that waits, beside its changes."""

_PENDING_FACTOR = 4
"""Changes that wait for their resolved mark may take this many times the size of one transaction."""


class Resolved(msgspec.Struct, frozen=True):
    """Every change up to `position` has been delivered, the last of them in `transactions`."""

    position: Position
    transactions: list[Transaction]


class _Envelope(msgspec.Struct, Generic[R]):
    """The value of a change. Without a row before and after, it was inserted and deleted by the same transaction."""

    mvcc_timestamp: str
    after: R | None = None
    before: R | None = None


class _Timestamp(msgspec.Struct):
    mvcc_timestamp: str


class _Presence(msgspec.Struct):
    mvcc_timestamp: str
    after: dict[str, msgspec.Raw] | None = None
    before: dict[str, msgspec.Raw] | None = None


class _Mark(msgspec.Struct):
    resolved: str


class _Pending:
    """The changes of one commit, until it is resolved."""

    __slots__ = ("changes", "oversized", "size", "tables", "unlisted")

    def __init__(self) -> None:
        self.changes: dict[tuple[bytes, bytes], Change] = {}  # by table and key
        self.size = 0
        self.tables: set[str] = set()
        self.unlisted: set[str] = set()
        self.oversized = False


class ChangefeedDecoder:
    """Takes the rows of one changefeed in the order in which they arrive.

    `after` is the position after which changes are wanted; the changefeed's cursor is `LOOKBACK_NS` before it.

    A change that can't be decoded does not stop the stream: its table becomes `unlisted`, so that the table's
    subscribers refresh. So do all tables with changes that wait, if together they are larger than `pending_limit`:
    after a long absence a changefeed sends all of the history in no order, with no mark before its end.
    """

    def __init__(
        self, tables: frozenset[str], limits: TransactionLimits, after: Position, pending_limit: int | None = None
    ) -> None:
        unknown = sorted(tables - _KINDS.keys())
        if unknown:
            raise ConfigError(f"tables are not published, so they can't be subscribed to: {', '.join(unknown)}")
        self.reached = Position(after - LOOKBACK_NS)  # every commit up to this nanosecond has been counted
        self.position = Position(0)  # of the last commit, subscribed or not
        self._after = after
        self.repeated = 0  # changes that were sent again
        self.decode_error: str | None = None  # of the last row that could not be decoded
        self._limits = limits
        self._pending_limit = pending_limit or limits.size_bytes * _PENDING_FACTOR
        self._decoders = {table.encode(): _envelope_decoder(_KINDS[table]) for table in tables}
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._pending_size = 0
        self._lost_tables: set[str] = set()  # with changes that were too many to be kept
        self._lost_until = Position(0)

    def feed(self, table: bytes | None, key: bytes | None, value: bytes) -> Resolved | None:
        """Takes one row of the changefeed. Without a table and a key it is a resolved mark.

        Raises DecodeError if the row's timestamp can't be read, because then its place is not known.
        """
        if table is None or key is None:
            return self._resolve(value)
        decode = self._decoders.get(table)
        if decode is None:
            self._count(table, value)
        else:
            self._take(table, key, value, decode)
        return None

    def _count(self, table: bytes, value: bytes) -> None:
        """A change without subscribers: its commit takes a position all the same."""
        try:
            timestamp = _presence(value)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise DecodeError(f"change of {table.decode()} in the changefeed, without a timestamp: {error}") from error
        wall, logical = _parsed(timestamp.mvcc_timestamp)
        changed = timestamp.after is not None or timestamp.before is not None
        if changed and wall > max(self.reached, self._lost_until):
            self._at(wall, logical)

    def _at(self, wall: int, logical: int) -> _Pending:
        pending = self._pending.get((wall, logical))
        if pending is None:
            pending = self._pending[wall, logical] = _Pending()
            self._pending_size += _COMMIT_BYTES
        return pending

    def _take(self, table: bytes, key: bytes, value: bytes, decode: Callable[[bytes], _Envelope[Row]]) -> None:
        change, error = None, None
        try:
            envelope = decode(value)
            timestamp, change = envelope.mvcc_timestamp, _change(envelope)
        except (msgspec.DecodeError, UnicodeError) as unreadable:
            timestamp, error = _timestamp_in(table, value, unreadable), unreadable
        wall, logical = _parsed(timestamp)
        if change is None and error is None:
            return
        if wall <= self.reached:
            self.repeated += 1
            return
        if wall <= self._lost_until:
            self._lost_tables.add(table.decode())
            return
        pending = self._at(wall, logical)
        pending.tables.add(table.decode())
        if change is None:
            self._note_unreadable(pending, table, timestamp, error)
        elif not pending.oversized:
            self._keep(pending, (table, key), change, len(value))

    def _keep(self, pending: _Pending, place: tuple[bytes, bytes], change: Change, size: int) -> None:
        if place in pending.changes:
            self.repeated += 1
            return
        pending.changes[place] = change
        pending.size += size
        self._pending_size += size
        if pending.size > self._limits.size_bytes or len(pending.changes) > self._limits.events:
            pending.oversized = True
            pending.changes = {}
            self._pending_size -= pending.size
        elif self._pending_size > self._pending_limit:
            self._lose_pending()

    def _lose_pending(self) -> None:
        """Keeps only the names of the tables with changes that wait."""
        self._lost_until = Position(max(wall for wall, _ in self._pending))
        for pending in self._pending.values():
            self._lost_tables |= pending.tables
        log.warning(
            "too many changes wait for a resolved mark: the subscribers of their tables refresh",
            size_bytes=self._pending_size, transactions=len(self._pending), tables=sorted(self._lost_tables),
        )  # fmt: skip
        self._pending.clear()
        self._pending_size = 0

    def _resolve(self, value: bytes) -> Resolved | None:
        """Returns None for a mark that resolves nothing new, and while some of the changes before it were lost."""
        try:
            position = resolved_position(_mark(value).resolved)
        except (msgspec.DecodeError, UnicodeError, Invalid) as error:
            raise DecodeError(f"resolved mark {value[:200]!r} of the changefeed: {error}") from error
        if position <= self.reached or position < self._lost_until:
            return None
        transactions = []
        if self._lost_until > self.reached:
            transactions += self._lost()
        for wall, logical in sorted(time for time in self._pending if time[0] <= position):
            transactions += self._transaction(wall, self._pending.pop((wall, logical)))
        self.reached = position
        return Resolved(max(position, self.position, self._after), transactions)

    def _next_position(self, wall: int) -> Position:
        self.position = Position(max(wall, self.position + 1))
        return self.position

    def _lost(self) -> list[Transaction]:
        tables, wall = frozenset(self._lost_tables), self._lost_until
        self._lost_tables = set()
        position = self._next_position(wall)
        return [Transaction(_commit(wall, position), [], tables, 0, tables)] if tables else []

    def _transaction(self, wall: int, pending: _Pending) -> list[Transaction]:
        """Returns nothing for a commit without subscribed tables, or at or before `after`."""
        commit = _commit(wall, self._next_position(wall))
        changes = pending.changes
        self._pending_size -= _COMMIT_BYTES + (0 if pending.oversized else pending.size)
        if not pending.tables or commit.position <= self._after:
            self.repeated += len(changes)
            return []
        events: list[Event[Row]] = []
        for place in sorted(changes, key=lambda place: (_rank(changes[place]), place[1])):
            operation, data, before = changes[place]
            events.append(Event(operation, data, before, commit, len(events)))
        commit.count = len(events)
        unlisted = pending.tables if pending.oversized else pending.unlisted
        return [Transaction(commit, events, frozenset(pending.tables), pending.size, frozenset(unlisted))]

    def _note_unreadable(self, pending: _Pending, table: bytes, timestamp: str, error: Exception | None) -> None:
        pending.unlisted.add(table.decode())
        self.decode_error = f"change of {table.decode()} at {timestamp}: {error}"
        log.warning(
            "change can't be decoded: its subscribers refresh", table=table.decode(), timestamp=timestamp,
            error=str(error),
        )  # fmt: skip


def _envelope_decoder(kind: type[Row]) -> Callable[[bytes], _Envelope[Row]]:
    """Ignores columns that the model does not have."""
    return msgspec.json.Decoder(_Envelope[kind]).decode  # type: ignore[valid-type]


_mark = msgspec.json.Decoder(_Mark).decode
_presence = msgspec.json.Decoder(_Presence).decode
_timestamp = msgspec.json.Decoder(_Timestamp).decode


def _commit(wall: int, position: Position) -> Commit:
    return Commit(wall, position, wall // 1000)


def _change(envelope: _Envelope[Row]) -> Change | None:
    """Returns None if the transaction changed nothing in the end."""
    after, before = envelope.after, envelope.before
    if after is None:
        return None if before is None else (_DELETE, before, before)
    return (_INSERT, after, None) if before is None else (_UPDATE, after, before)


def _timestamp_in(table: bytes, value: bytes, error: Exception) -> str:
    try:
        return _timestamp(value).mvcc_timestamp
    except (msgspec.DecodeError, UnicodeError):
        raise DecodeError(f"change of {table.decode()} in the changefeed, without a timestamp: {error}") from error


def _parsed(timestamp: str) -> tuple[int, int]:
    try:
        return parse_timestamp(timestamp)
    except Invalid as error:
        raise DecodeError(f"change in the changefeed: {error}") from error


_ORDER = {kind: number for number, kind in enumerate(PUBLISHED)}
_SORTED_BY: dict[type[Row], tuple[str, ...]] = {kind: kind.key for kind in PUBLISHED}
_SORTED_BY[Segment] = ("topic", "partition_id", "base_offset")


def _rank(change: Change) -> tuple[int, int, tuple[object, ...]]:
    """Returns the place of a change among those of its commit, the same whenever it is sent.

    Deletions, children before parents; then the other changes, parents before children. Before all of them the marker
    of a commit through the catalog, after the table if that is new. Inside a table by key, segments by offset.
    """
    operation, row, _ = change
    kind = type(row)
    number = _ORDER[kind]
    if kind is LakeTable and operation is _INSERT:
        phase = 0
    elif kind is IcebergCommit and operation is not _DELETE:
        phase = 1
    elif operation is _DELETE:
        phase, number = 2, -number
    else:
        phase = 3
    return phase, number, tuple(getattr(row, name) for name in _SORTED_BY[kind])
