"""Transactions that were received together and are passed on together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from astha.events.event import Commit, Event
from astha.events.transaction import Transaction
from registry.models import Row
from registry.position import Position


class EventBatch(msgspec.Struct, gc=False):
    """At least one transaction, in order. Lanes that receive the same transactions share one batch and its tally."""

    transactions: Sequence[Transaction]
    events: list[Event[Row]]  # of all transactions
    size_bytes: int
    has_unlisted: bool  # a transaction has tables whose changes are not listed
    _tally: Mapping[tuple[str, str], int] | None = None
    _traced: list[Commit] | None = None

    @classmethod
    def of(cls, transactions: Sequence[Transaction]) -> EventBatch:
        first = transactions[0]
        if len(transactions) == 1:
            return cls(transactions, first.events, first.size_bytes, bool(first.unlisted))
        events: list[Event[Row]] = []
        size, has_unlisted = 0, False
        for transaction in transactions:
            events += transaction.events
            size += transaction.size_bytes
            has_unlisted = has_unlisted or bool(transaction.unlisted)
        return cls(transactions, events, size, has_unlisted)

    @property
    def first(self) -> Transaction:
        return self.transactions[0]

    @property
    def position(self) -> Position:
        """The position of its last commit."""
        return self.transactions[-1].commit.position

    def tally(self) -> Mapping[tuple[str, str], int]:
        """Returns the number of events by table and operation, counted once for all lanes."""
        if self._tally is None:
            counted = Counter([(type(event.data), event.operation) for event in self.events])
            self._tally = {(kind.table, str(operation)): number for (kind, operation), number in counted.items()}
        return self._tally

    def traced(self) -> list[Commit]:
        """Returns the commits whose spans are recorded, found once for all lanes."""
        if self._traced is None:
            self._traced = [
                each.commit for each in self.transactions if (trace := each.commit.trace) is not None and trace.sampled
            ]
        return self._traced

    def count_within(self, events: int) -> int:
        """Returns how many of the first transactions have at most so many events together, but at least 1."""
        taken = 0
        for number, transaction in enumerate(self.transactions):
            taken += len(transaction.events)
            if taken > events and number:
                return number
        return len(self.transactions)

    def divide(self, transactions: int) -> list[EventBatch]:
        """Returns batches of so many transactions each; the last one may have fewer."""
        if transactions == 1:
            return [EventBatch.of((transaction,)) for transaction in self.transactions]
        starts = range(0, len(self.transactions), transactions)
        return [EventBatch.of(self.transactions[start : start + transactions]) for start in starts]
