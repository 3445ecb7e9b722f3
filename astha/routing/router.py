"""From transactions to lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from astha.events import Commit, Transaction
from registry.position import Position

_REMEMBERED = 65_536
"""Commits kept for refreshes: see `astha.lanes.refresh.snapshot_after`."""


class Destination(Protocol):
    """A lane, as the router sees it. Neither call ever waits."""

    tables: frozenset[str]

    def offer(self, transactions: Sequence[Transaction]) -> None: ...

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
        """Offers each lane what concerns it. Never waits."""
        offers: dict[Destination, list[Transaction]] = {lane: [] for lane in self._lanes}
        for transaction in transactions:
            self._recent.append(transaction.commit)
            for lane, whole in self._plans.get(transaction.tables) or self._plan(transaction.tables):
                offers[lane].append(transaction if whole else _part(transaction, lane.tables))
        last = transactions[-1].position
        for lane, offered in offers.items():
            if offered:
                lane.offer(offered)
            lane.passed(last)

    def start_over(self) -> None:
        """Another history begins."""
        self._recent.clear()

    def passed(self, position: Position) -> None:
        for lane in self._lanes:
            lane.passed(position)

    def _plan(self, tables: frozenset[str]) -> list[tuple[Destination, bool]]:
        plan = [(lane, tables <= lane.tables) for lane in self._lanes if tables & lane.tables]
        self._plans[tables] = plan
        return plan


def _part(transaction: Transaction, tables: frozenset[str]) -> Transaction:
    return msgspec.structs.replace(
        transaction,
        events=[event for event in transaction.events if event.data.table in tables],
        tables=transaction.tables & tables,
        unlisted=transaction.unlisted & tables,
        _tally=None,
    )
