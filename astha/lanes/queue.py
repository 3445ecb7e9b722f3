"""What waits in a lane, counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from astha.events import Transaction


class LaneQueue:
    """Bounded by events and by bytes. The first transaction stays until it is `done`."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._waiting: deque[Transaction] = deque()
        self.events = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._waiting)

    def put(self, transaction: Transaction) -> bool:
        """False, and nothing added, if it does not fit."""
        events = self.events + len(transaction.events)
        size = self.size_bytes + transaction.size_bytes
        if events > self.max_events or size > self.max_bytes:
            return False
        self.events, self.size_bytes = events, size
        self._waiting.append(transaction)
        return True

    def first(self) -> Transaction:
        return self._waiting[0]

    def run(self, events: int) -> list[Transaction]:
        """The first transactions, as many as have so many events together; at least one."""
        run: list[Transaction] = []
        for transaction in self._waiting:
            events -= len(transaction.events)
            if events < 0 and run:
                break
            run.append(transaction)
        return run

    def done(self, count: int = 1) -> None:
        for _ in range(count):
            transaction = self._waiting.popleft()
            self.events -= len(transaction.events)
            self.size_bytes -= transaction.size_bytes

    def clear(self) -> None:
        self._waiting.clear()
        self.events = self.size_bytes = 0

    def keep(self, wanted: Callable[[Transaction], bool]) -> None:
        kept = [transaction for transaction in self._waiting if wanted(transaction)]
        self.clear()
        for transaction in kept:
            self.events += len(transaction.events)
            self.size_bytes += transaction.size_bytes
            self._waiting.append(transaction)
