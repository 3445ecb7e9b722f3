"""What one commit changed."""

from __future__ import annotations

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

    @property
    def position(self) -> Position:
        return self.commit.position
