"""A subscriber that records what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from astha.events import Event, Operation
from astha.testing.registry import Key, key_of
from registry.contract import ConsistentRead
from registry.models import PUBLISHED, Row

_KINDS = {kind.table: kind for kind in PUBLISHED}


class RecordingSubscriber:
    """Keeps every event and the rows that result: once all events are delivered, `rows` equals the registry."""

    def __init__(self, *tables: str, whole_transactions: bool = False) -> None:
        self._tables = frozenset(tables)
        self.events: list[Event[Row]] = []
        self.transactions: list[list[Event[Row]]] = []
        self.rows: dict[str, dict[Key, Row]] = {table: {} for table in tables}
        self.refreshes = 0
        self.healthy = True
        self._changed = asyncio.Event()
        if whole_transactions:
            self.on_transaction = self._on_transaction

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._tables

    async def on_event(self, event: Event[Row]) -> None:
        self._apply(event)

    async def _on_transaction(self, events: Sequence[Event[Row]]) -> None:
        self.transactions.append(list(events))
        for event in events:
            self._apply(event)

    async def on_health(self) -> bool:
        return self.healthy

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        rows: dict[str, dict[Key, Row]] = {table: {} for table in self._tables}
        for table in self._tables:
            async for page in snapshot.rows(_KINDS[table]):
                rows[table].update((key_of(row), row) for row in page)
        self.rows = rows
        self.refreshes += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Waits until the condition holds; checks it after each event and refresh."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _apply(self, event: Event[Row]) -> None:
        self.events.append(event)
        rows = self.rows[event.table]
        if event.before is not None:
            rows.pop(key_of(event.before), None)
        if event.operation is not Operation.DELETE:
            rows[key_of(event.data)] = event.data
        self._changed.set()
