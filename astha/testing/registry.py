"""A registry in memory, and deliveries from it: enough to test a component without a database or a daemon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from pydantic import SecretStr

from astha.events import Commit, Event, Operation, Transaction
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.subscribers.contract import BatchSubscriber, EventSubscriber, Subscriber, TransactionSubscriber
from astha.testing.clock import ManualClock
from registry.contract import PAGE, ConsistentRead, MetadataStore
from registry.json_text import EMPTY_OBJECT, JsonText
from registry.models import Row
from registry.position import Position, SequenceVisibility

R = TypeVar("R", bound=Row)
Key = tuple[object, ...]


class FakeRegistry:
    """Each `commit` is one transaction, returned as a source would decode it."""

    step = 1
    """Distance between the positions of two commits."""

    def __init__(self) -> None:
        self.rows: dict[type[Row], dict[Key, Row]] = defaultdict(dict)
        self.last = Position(0)

    def commit(self, *rows: Row, removed: Sequence[Row] = (), size: int = 0) -> Transaction:
        """Inserts or updates `rows` by primary key, then deletes `removed`."""
        self.last = Position(self.last + self.step)
        commit = Commit(self.last, self.last, 0)
        events: list[Event[Row]] = []
        for row in rows:
            table, key = self.rows[type(row)], key_of(row)
            before = table.get(key)
            table[key] = row
            operation = Operation.INSERT if before is None else Operation.UPDATE
            events.append(Event(operation, row, before, commit, len(events)))
        for row in removed:
            del self.rows[type(row)][key_of(row)]
            events.append(Event(Operation.DELETE, row, row, commit, len(events)))
        commit.count = len(events)
        return Transaction(commit, events, frozenset(event.table for event in events), size)

    def snapshot(self) -> ConsistentRead:
        """Returns all rows as of now, for `on_refresh`."""
        return FakeSnapshot({kind: list(rows.values()) for kind, rows in self.rows.items()}, self.last)


class FakeSnapshot:
    def __init__(self, rows: Mapping[type[Row], list[Row]], last: Position) -> None:
        self._rows = rows
        self.visibility = SequenceVisibility(last)

    async def count(self, kind: type[Row]) -> int:
        return len(self._rows.get(kind, ()))

    async def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        rows = cast("list[R]", self._rows.get(kind, []))
        if table_id is not None:
            rows = [row for row in rows if getattr(row, "table_id", None) == table_id]
        for start in range(0, len(rows), page):
            yield rows[start : start + page]


async def deliver(subscriber: Subscriber, *transactions: Transaction) -> None:
    """Calls the subscriber with its tables' events, at the granularity that the daemon would choose. Retries nothing:
    deliver the same transaction again to see what a retry or a crash does.
    """
    batch = [list(_subscribed(transaction, subscriber.subscribed_tables)) for transaction in transactions]
    batch = [events for events in batch if events]
    if isinstance(subscriber, BatchSubscriber):
        if batch:
            await subscriber.on_transactions(batch)
    elif isinstance(subscriber, TransactionSubscriber):
        for events in batch:
            await subscriber.on_transaction(events)
    elif isinstance(subscriber, EventSubscriber):
        for event in (event for events in batch for event in events):
            await subscriber.on_event(event)
    else:
        raise TypeError(f"{type(subscriber).__name__} has no on_event, on_transaction or on_transactions")


def make_row(kind: type[R], **values: Any) -> R:
    """Returns a row with these values; the other required columns are 0, empty, None or an empty JSON object."""
    hints = get_type_hints(kind)
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{name: _empty(hints[name]) for name in required if name not in values}, **values)


def make_context(store: MetadataStore | None = None, clock: ManualClock | None = None) -> ComponentContext:
    """Returns a context for `create`. Without a store, the component must not use one."""
    return ComponentContext(
        cast("MetadataStore", store), clock or ManualClock(), SecretStr("sqlite:///registry.db"), LakeSettings()
    )


def key_of(row: Row) -> Key:
    return tuple(getattr(row, name) for name in row.key)


def _subscribed(transaction: Transaction, tables: frozenset[str]) -> Iterable[Event[Row]]:
    return (event for event in transaction.events if event.table in tables)


def _empty(hint: Any) -> object:
    if hint is JsonText:
        return EMPTY_OBJECT
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    return None if type(None) in get_args(hint) else hint()
