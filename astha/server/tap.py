"""Events as they pass, for those who watch: never waits, keeps a bounded number, and counts what it could not keep."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from astha.events import Event, Transaction
from registry.documents import Document
from registry.models import Row


class Missed(msgspec.Struct, frozen=True):
    """So many events were not kept for a reader that was too slow."""

    missed: int


class Seen(msgspec.Struct, frozen=True):
    """One event, as JSON tells it."""

    table: str
    operation: str
    position: int
    transaction: int
    index: int
    last: bool
    committed_at_us: int
    data: Row
    before: Row | None


class Watcher:
    """What waits for one reader. Transactions are kept whole, by reference, or counted as missed."""

    def __init__(self, tables: frozenset[str], limit_events: int) -> None:
        self._tables = tables
        self._limit = limit_events
        self._kept: deque[tuple[Transaction, int]] = deque()
        self._events = 0
        self._missed = 0
        self._news = asyncio.Event()

    def offer(self, transaction: Transaction) -> None:
        if not self._tables & transaction.tables:
            return
        wanted = sum(event.table in self._tables for event in transaction.events)
        if self._missed or self._events + wanted > self._limit:
            self._missed += wanted
        elif wanted:
            self._kept.append((transaction, wanted))
            self._events += wanted
        self._news.set()

    async def wait(self, timeout_s: float) -> None:
        """Until there is something to take, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    def take(self) -> Iterator[Event[Row] | Missed]:
        """What is there, oldest first; a gap is told before whatever comes after it."""
        while self._kept:
            transaction, wanted = self._kept.popleft()
            self._events -= wanted
            yield from (event for event in transaction.events if event.data.table in self._tables)
        missed, self._missed = self._missed, 0
        self._news.clear()
        if missed:
            yield Missed(missed)


class Tap:
    """To be put into `Daemon.taps`. Costs nothing while nobody watches."""

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()

    def __call__(self, transactions: Sequence[Transaction]) -> None:
        for watcher in self.watchers:
            for transaction in transactions:
                watcher.offer(transaction)


def encode(item: Event[Row] | Missed) -> bytes:
    """One line of JSON."""
    if isinstance(item, Missed):
        return _encoder.encode(item) + b"\n"
    seen = Seen(
        item.table, str(item.operation), item.position, item.transaction, item.index, item.last, item.committed_at,
        item.data, item.before,
    )  # fmt: skip
    return _encoder.encode(seen) + b"\n"


def _plain(value: object) -> object:
    """A JSON column is shown as what it holds, not as text."""
    if isinstance(value, Document):
        return msgspec.Raw(value.encode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
