"""The changes of one commit."""

from __future__ import annotations

import msgspec

from astha.events.event import Commit, Event
from registry.models import Row
from registry.position import Position


class Transaction(msgspec.Struct, gc=False):
    """Events of all subscribed tables, in the order in which the rows changed. (A changefeed of CockroachDB
    does not tell that order: its source makes one, and several changes of one row are one event.)

    If a transaction is too large to hold, or truncates tables, those tables are in `unlisted`: their changes are not
    listed as events, and their subscribers have to refresh.
    """

    commit: Commit
    events: list[Event[Row]]
    tables: frozenset[str]
    size_bytes: int = 0
    unlisted: frozenset[str] = frozenset()

    @property
    def position(self) -> Position:
        return self.commit.position
