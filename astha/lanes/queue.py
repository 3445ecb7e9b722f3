"""A lane's bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from astha.events import EventBatch, Transaction

_BATCH_TRANSACTIONS = 256
"""Transactions per batch that is made here: splitting a batch copies the rest of it, so a long one is divided first."""


class LaneQueue:
    """Bounded by events and by bytes. A batch taken from the head stays in the queue until it is `done`."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._batches: deque[EventBatch] = deque()
        self.events = 0
        self.size_bytes = 0
        self.delivered = 0  # events of the first transaction that were delivered before one failed

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[Transaction]:
        for batch in self._batches:
            yield from batch.transactions

    def put(self, batch: EventBatch) -> bool:
        """Returns False and adds nothing if it does not fit."""
        events = self.events + len(batch.events)
        size = self.size_bytes + batch.size_bytes
        if events > self.max_events or size > self.max_bytes:
            return False
        self.events, self.size_bytes = events, size
        self._batches.append(batch)
        return True

    def first(self) -> Transaction:
        return self._batches[0].first

    def head(self, events: int) -> EventBatch:
        """Returns the first transactions of the first batch: at most so many events, but at least one transaction."""
        batch = self._batches[0]
        if len(batch.events) <= events or len(batch.transactions) == 1:
            return batch
        part = max(events, _BATCH_TRANSACTIONS)
        if len(batch.transactions) > part:
            batch = self._replace_first(batch.divide(part))
        whole = batch.count_within(events)
        if whole == len(batch.transactions):
            return batch
        return self._replace_first(
            [EventBatch.of(batch.transactions[:whole]), EventBatch.of(batch.transactions[whole:])]
        )

    def head_transaction(self) -> EventBatch:
        """Returns a batch of the first transaction. Divides the first batch once for all its transactions."""
        batch = self._batches[0]
        return batch if len(batch.transactions) == 1 else self._replace_first(batch.divide(1))

    def _replace_first(self, parts: list[EventBatch]) -> EventBatch:
        """Puts `parts`, which together are the first batch, in its place; returns the first of them."""
        self._batches.popleft()
        self._batches.extendleft(reversed(parts))
        return parts[0]

    def gather(self, events: int) -> EventBatch:
        """Returns the first transactions, of several batches: at most so many events, but at least one transaction."""
        batch = self.head(events)
        if len(self._batches) == 1 or len(batch.events) >= events:
            return batch
        transactions: list[Transaction] = []
        while self._batches and (not transactions or events >= len(self._batches[0].events)):
            part = self._batches.popleft()
            events -= len(part.events)
            transactions += part.transactions
        batch = EventBatch.of(transactions)
        self._batches.appendleft(batch)
        return batch

    def fits(self, transaction: Transaction) -> bool:
        return (
            self.events + len(transaction.events) <= self.max_events
            and self.size_bytes + transaction.size_bytes <= self.max_bytes
        )

    def advance(self, events: int) -> EventBatch | None:
        """Records that so many events of the batch taken last are delivered and the next one failed. Removes and
        returns the transactions that are complete; `delivered` counts the events of the one that failed.
        """
        batch, whole = self._batches[0], 0
        for transaction in batch.transactions:
            if len(transaction.events) > events:
                break
            events -= len(transaction.events)
            whole += 1
        self.delivered = events
        if not whole or whole == len(batch.transactions):
            return None
        done, rest = EventBatch.of(batch.transactions[:whole]), EventBatch.of(batch.transactions[whole:])
        self._batches[0] = rest
        self.events -= len(done.events)
        self.size_bytes -= done.size_bytes
        return done

    def done(self) -> None:
        """Removes the batch that was taken last."""
        self.delivered = 0
        batch = self._batches.popleft()
        self.events -= len(batch.events)
        self.size_bytes -= batch.size_bytes

    def clear(self) -> None:
        self._batches.clear()
        self.events = self.size_bytes = self.delivered = 0

    def keep(self, wanted: Callable[[Transaction], bool]) -> None:
        kept = [transaction for transaction in self if wanted(transaction)]
        self.clear()
        for start in range(0, len(kept), _BATCH_TRANSACTIONS):
            batch = EventBatch.of(kept[start : start + _BATCH_TRANSACTIONS])
            self.events += len(batch.events)
            self.size_bytes += batch.size_bytes
            self._batches.append(batch)
