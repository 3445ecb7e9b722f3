"""From changes to the transactions that made them."""

from __future__ import annotations

from collections.abc import Iterable

from astha.events import Commit, Event, Transaction
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.changelog import Change, Header, RowChange
from registry.models import Row
from registry.position import Position


class Assembler:
    """Feed it the log in order; it answers transactions once their end is known.

    The end is the next transaction's first row, or the end of the log: SQLite commits show whole or not at all, so
    `finish` may be called whenever one statement has seen the log to its end. Consecutive rows without a number are
    one transaction; its number is the negative of its first sequence, which no announced one can be.
    """

    def __init__(self, tables: frozenset[str], limits: TransactionLimits) -> None:
        self._subscribed = tables
        self._limits = limits
        self.reached: Position | None = None  # where the last complete transaction ends, whosever tables it touched
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction."""
        self._commit: Commit | None = None
        self._number: int | None = None
        self._last: Change | None = None
        self._events: list[Event[Row]] = []
        self._tables: set[str] = set()
        self._unlisted: set[str] = set()
        self._size = 0
        self._oversized = False

    @property
    def oversized(self) -> bool:
        """The open transaction keeps no events any more: headers are enough to follow it."""
        return self._oversized

    def continues(self, change: Change) -> bool:
        """Whether the open transaction goes on with this row."""
        return self._commit is not None and change.transaction_number == self._number

    def feed(self, changes: Iterable[RowChange | Header]) -> list[Transaction]:
        """The transactions that these rows complete, but for those that touched nothing subscribed to."""
        done: list[Transaction] = []
        commit, number, last, events = self._commit, self._number, self._last, self._events
        for change in changes:
            if commit is None or change.transaction_number != number:
                self._last = last
                done += self.finish()
                commit, number, events = self._begin(change), change.transaction_number, self._events
            last = change
            if isinstance(change, Header):
                self._pass_over(change)
                continue
            self._tables.add(change.table)
            if self._oversized:
                continue
            before, after = change.before, change.after
            # The decoder has seen to it that a row without the one has the other.
            events.append(Event(change.operation, after or before, before, commit, len(events)))  # type: ignore[arg-type]
            self._size += change.size_bytes
            if self._size > self._limits.size_bytes or len(events) > self._limits.events:
                self._oversized = True
                self._events = events = []
        self._last = last
        return done

    def finish(self) -> list[Transaction]:
        """The log ended here: the open transaction, if there is one that anybody subscribes to."""
        commit, last = self._commit, self._last
        if commit is None or last is None:
            return []
        commit.position = self.reached = Position(last.sequence)
        commit.committed_at = last.changed_at * 1000
        commit.count = len(self._events)
        unlisted = self._tables if self._oversized else self._unlisted
        tables, events, size = self._tables, self._events, self._size
        self.reset()
        if not tables:
            return []
        return [Transaction(commit, events, frozenset(tables), size, frozenset(unlisted))]

    def _pass_over(self, header: Header) -> None:
        """A row without images: what happened to its table is not told."""
        if header.table in self._subscribed:
            self._tables.add(header.table)
            self._unlisted.add(header.table)

    def _begin(self, change: Change) -> Commit:
        number = change.transaction_number
        self._number = number
        identity = -change.sequence if number is None else number
        self._commit = Commit(identity, Position(change.sequence), change.changed_at * 1000)
        return self._commit
