"""What the last change events said, to correct reads that can't see it yet.

PostgreSQL sends a commit to the change stream before it shows the commit to other sessions (tried: 3 of 128
snapshots missed a transaction that had already been delivered). So a read that begins after an event was
applied can still return the row that the event replaced, and a cache would keep it. Such a read is known by
its answer, which is exactly the event's row before, and is corrected to the row after. A few rows back are
enough: the next writer of a row has to wait until the one before is visible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from registry.models import Row

K = TypeVar("K", str, int)
R = TypeVar("R", bound=Row)

_BACK = 4
"""Superseded versions of a row that are remembered: a read may be held up while more events arrive."""


class Amendments(Generic[K, R]):
    """The last events of one table: rows before and row after, by scope (what a list verb lists) and key."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._order: OrderedDict[tuple[str, K], None] = OrderedDict()
        self._scopes: dict[str, dict[K, tuple[tuple[R | None, ...], R | None]]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def note(self, scope: str, key: K, before: R | None, after: R | None) -> None:
        events = self._scopes.setdefault(scope, {})
        earlier: tuple[R | None, ...] = events[key][0][1 - _BACK :] if key in events else ()
        events[key] = ((*earlier, before), after)
        self._order[scope, key] = None
        self._order.move_to_end((scope, key))
        if len(self._order) > self._remembered:
            self._forget(*self._order.popitem(last=False)[0])

    def forget(self, scope: str, key: K) -> None:
        """After a write of our own: what we read from now on contains it."""
        if (scope, key) in self._order:
            del self._order[scope, key]
            self._forget(scope, key)

    def forget_scope(self, scope: str) -> None:
        for key in self._scopes.pop(scope, {}):
            del self._order[scope, key]

    def clear(self) -> None:
        self._order.clear()
        self._scopes.clear()

    def row(self, scope: str, key: K, row: R | None, *, gone: bool = False) -> R | None:
        """``gone``: we have deleted it ourselves, and events from before that are still to come."""
        event = self._scopes.get(scope, {}).get(key)
        if event is None or row not in event[0] or (gone and row is None):
            return row
        return event[1]

    def rows(self, scope: str, rows: Mapping[K, R], gone: Callable[[K], bool]) -> list[R]:
        """All rows of a scope, by key."""
        amended = dict(rows)
        for key, (superseded, after) in self._scopes.get(scope, {}).items():
            row = rows.get(key)
            if row in superseded and not (row is None and gone(key)):
                if after is None:
                    amended.pop(key, None)
                else:
                    amended[key] = after
        return [amended[key] for key in sorted(amended)]

    def _forget(self, scope: str, key: K) -> None:
        events = self._scopes[scope]
        del events[key]
        if not events:
            del self._scopes[scope]
