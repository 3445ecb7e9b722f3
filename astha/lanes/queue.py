"""What waits in a lane, counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from astha.events import EventBatch, Transaction

_TOGETHER = 256
"""Transactions in a batch that is made here: what is split again and again must not be long."""


class LaneQueue:
    """Bounded by events and by bytes. What is taken from the head stays there until it is `done`."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._waiting: deque[EventBatch] = deque()
        self.events = 0
        self.size_bytes = 0
        self.delivered = 0  # events of the first transaction that were delivered before one of it failed

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Transaction]:
        for batch in self._waiting:
            yield from batch.transactions

    def put(self, batch: EventBatch) -> bool:
        """False, and nothing added, if it does not fit."""
        events = self.events + len(batch.events)
        size = self.size_bytes + batch.size_bytes
        if events > self.max_events or size > self.max_bytes:
            return False
        self.events, self.size_bytes = events, size
        self._waiting.append(batch)
        return True

    def first(self) -> Transaction:
        return self._waiting[0].first

    def head(self, events: int) -> EventBatch:
        """The first transactions that came together, as many as have so many events; at least one."""
        batch, rest = self._waiting[0].split(events)
        if rest is not None:
            self._waiting[0] = batch
            self._waiting.insert(1, rest)
        return batch

    def gather(self, events: int) -> EventBatch:
        """The first transactions, however they came, as many as have so many events; at least one."""
        batch = self.head(events)
        if len(self._waiting) == 1 or len(batch.events) >= events:
            return batch
        transactions: list[Transaction] = []
        while self._waiting and (not transactions or events >= len(self._waiting[0].events)):
            part = self._waiting.popleft()
            events -= len(part.events)
            transactions += part.transactions
        batch = EventBatch.of(transactions)
        self._waiting.appendleft(batch)
        return batch

    def fits(self, transaction: Transaction) -> bool:
        return (
            self.events + len(transaction.events) <= self.max_events
            and self.size_bytes + transaction.size_bytes <= self.max_bytes
        )

    def advance(self, events: int) -> EventBatch | None:
        """So many events of what was taken last are delivered, and then one failed. Whole transactions leave the queue
        and are returned; of the one that failed the next delivery leaves out what was delivered.
        """
        batch, whole = self._waiting[0], 0
        for transaction in batch.transactions:
            if len(transaction.events) > events:
                break
            events -= len(transaction.events)
            whole += 1
        self.delivered = events
        if not whole or whole == len(batch.transactions):
            return None
        done, rest = EventBatch.of(batch.transactions[:whole]), EventBatch.of(batch.transactions[whole:])
        self._waiting[0] = rest
        self.events -= len(done.events)
        self.size_bytes -= done.size_bytes
        return done

    def done(self) -> None:
        """With what was taken last."""
        self.delivered = 0
        batch = self._waiting.popleft()
        self.events -= len(batch.events)
        self.size_bytes -= batch.size_bytes

    def clear(self) -> None:
        self._waiting.clear()
        self.events = self.size_bytes = self.delivered = 0

    def keep(self, wanted: Callable[[Transaction], bool]) -> None:
        kept = [transaction for transaction in self if wanted(transaction)]
        self.clear()
        for start in range(0, len(kept), _TOGETHER):
            batch = EventBatch.of(kept[start : start + _TOGETHER])
            self.events += len(batch.events)
            self.size_bytes += batch.size_bytes
            self._waiting.append(batch)
