"""Routes transactions to lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from astha.events import Commit, EventBatch, Transaction
from registry.position import Position

_REMEMBERED = 65_536
"""Commits kept for refreshes: see `astha.lanes.snapshot.snapshot_after`."""


class Destination(Protocol):
    """A lane, as the router sees it. Its methods never wait."""

    tables: frozenset[str]

    def offer(self, batch: EventBatch) -> None: ...

    def passed(self, position: Position) -> None: ...


class Router:
    def __init__(self, lanes: Sequence[Destination]) -> None:
        self._lanes = lanes
        self._plans: dict[frozenset[str], list[tuple[Destination, bool]]] = {}
        self._recent: deque[Commit] = deque(maxlen=_REMEMBERED)

    @property
    def tables(self) -> frozenset[str]:
        return frozenset().union(*(lane.tables for lane in self._lanes))

    def recent(self) -> Iterable[Commit]:
        return self._recent

    def route(self, transactions: Sequence[Transaction]) -> None:
        """Offers each lane the transactions that concern it. Never waits."""
        self._recent.extend([transaction.commit for transaction in transactions])
        table_sets = {transaction.tables for transaction in transactions}
        if len(table_sets) == 1:
            self._route_together(transactions, table_sets.pop())
        else:
            self._route_each(transactions)
        last = transactions[-1].position
        for lane in self._lanes:
            lane.passed(last)

    def _route_together(self, transactions: Sequence[Transaction], tables: frozenset[str]) -> None:
        """All transactions have the same tables: lanes that subscribe to all of these share one batch."""
        batch: EventBatch | None = None
        for lane, whole in self._planned(tables):
            if whole:
                batch = batch or EventBatch.of(transactions)
                lane.offer(batch)
            else:
                lane.offer(EventBatch.of([_part(transaction, lane.tables) for transaction in transactions]))

    def _route_each(self, transactions: Sequence[Transaction]) -> None:
        offers: dict[Destination, list[Transaction]] = {lane: [] for lane in self._lanes}
        for transaction in transactions:
            for lane, whole in self._planned(transaction.tables):
                offers[lane].append(transaction if whole else _part(transaction, lane.tables))
        for lane, offered in offers.items():
            if offered:
                lane.offer(EventBatch.of(offered))

    def start_over(self) -> None:
        """Another history begins: commits of this one are forgotten."""
        self._recent.clear()

    def passed(self, position: Position) -> None:
        for lane in self._lanes:
            lane.passed(position)

    def _planned(self, tables: frozenset[str]) -> list[tuple[Destination, bool]]:
        plan = self._plans.get(tables)
        if plan is None:
            plan = self._plans[tables] = self._plan(tables)
        return plan

    def _plan(self, tables: frozenset[str]) -> list[tuple[Destination, bool]]:
        return [(lane, tables <= lane.tables) for lane in self._lanes if tables & lane.tables]


def _part(transaction: Transaction, tables: frozenset[str]) -> Transaction:
    return msgspec.structs.replace(
        transaction,
        events=[event for event in transaction.events if event.data.table in tables],
        tables=transaction.tables & tables,
        unlisted=transaction.unlisted & tables,
    )
