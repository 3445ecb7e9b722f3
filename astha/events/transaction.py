"""What one commit changed."""

from __future__ import annotations

from collections import Counter

import msgspec

from astha.events.event import Commit, Event
from registry.models import Row
from registry.position import Position


class Transaction(msgspec.Struct, gc=False):
    """Events in the order in which the rows changed, of all tables that anybody subscribes to.

    A transaction that is too large to hold, or that truncated tables, has those tables in `unlisted`: what happened
    to them is not told event by event, and who subscribes to them has to refresh.
    """

    commit: Commit
    events: list[Event[Row]]
    tables: frozenset[str]
    size_bytes: int = 0
    unlisted: frozenset[str] = frozenset()
    _tally: dict[tuple[str, str], int] | None = None

    def tally(self) -> dict[tuple[str, str], int]:
        """Events by table and operation; counted once, however many lanes ask."""
        if self._tally is None:
            counted = Counter((type(event.data), event.operation) for event in self.events)
            self._tally = {(kind.table, str(operation)): number for (kind, operation), number in counted.items()}
        return self._tally

    @property
    def position(self) -> Position:
        return self.commit.position
