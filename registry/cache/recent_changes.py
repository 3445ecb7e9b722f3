"""The most recent change events, to correct reads that do not see them yet.

PostgreSQL sends a commit to the change stream before other sessions can see it (measured: 3 of 128 snapshots missed
a transaction that had already been delivered). So a read that begins after an event was applied can still return the
row that the event replaced, and a cache would keep it. Such a result equals the event's row before, and is replaced
by the row after. A few versions per row are enough: the next writer of a row waits until the previous one is visible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from registry.models import Row

K = TypeVar("K", str, int)
R = TypeVar("R", bound=Row)

_VERSIONS = 4
"""Superseded versions remembered per row: more events may arrive while a read is delayed."""


class RecentChanges(Generic[K, R]):
    """The last events of one table: superseded rows and the current row, by scope (what a list verb lists) and key."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._order: OrderedDict[tuple[str, K], None] = OrderedDict()
        self._scopes: dict[str, dict[K, tuple[tuple[R | None, ...], R | None]]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def record(self, scope: str, key: K, before: R | None, after: R | None) -> None:
        events = self._scopes.setdefault(scope, {})
        earlier: tuple[R | None, ...] = events[key][0][1 - _VERSIONS :] if key in events else ()
        events[key] = ((*earlier, before), after)
        self._order[scope, key] = None
        self._order.move_to_end((scope, key))
        if len(self._order) > self._remembered:
            self._forget(*self._order.popitem(last=False)[0])

    def forget(self, scope: str, key: K) -> None:
        """After a write through this cache: every later read contains it."""
        if (scope, key) in self._order:
            del self._order[scope, key]
            self._forget(scope, key)

    def forget_scope(self, scope: str) -> None:
        for key in self._scopes.pop(scope, {}):
            del self._order[scope, key]

    def clear(self) -> None:
        self._order.clear()
        self._scopes.clear()

    def correct(self, scope: str, key: K, row: R | None, *, gone: bool = False) -> R | None:
        """Returns ``row``, or its successor if an event has replaced it.

        ``gone``: this cache has deleted the row, and events from before the deletion may still arrive.
        """
        event = self._scopes.get(scope, {}).get(key)
        if event is None or row not in event[0] or (gone and row is None):
            return row
        return event[1]

    def correct_all(self, scope: str, rows: Mapping[K, R], gone: Callable[[K], bool]) -> list[R]:
        """`correct` for all rows of a scope; sorted by key."""
        corrected = dict(rows)
        for key, (superseded, after) in self._scopes.get(scope, {}).items():
            row = rows.get(key)
            if row in superseded and not (row is None and gone(key)):
                if after is None:
                    corrected.pop(key, None)
                else:
                    corrected[key] = after
        return [corrected[key] for key in sorted(corrected)]

    def _forget(self, scope: str, key: K) -> None:
        events = self._scopes[scope]
        del events[key]
        if not events:
            del self._scopes[scope]
