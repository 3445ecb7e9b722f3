"""A stream and events for tests of formats."""

from __future__ import annotations

from astha.events import Commit, Event, Operation
from components.lib.change_formats import Origin
from registry.json_text import JsonText
from registry.models import Partition, Row, Segment, Topic
from registry.position import Position

ORIGIN = Origin("registry", "astha", 7, "postgresql")
NOW_MS = 1_700_000_001_000
COMMITTED_AT_US = 1_700_000_000_123_456

TOPIC = Topic("orders", 3, None, JsonText('{"acks":1}'), 10, 20)
PARTITION = Partition("orders", 0, 100, 10, 20)
SEGMENT = Segment(1, "orders", 0, 0, 99, 100, 4096, "lake", "orders/0", 0, 30)


def commit(count: int = 1, position: int = 95) -> Commit:
    return Commit(1042, Position(position), COMMITTED_AT_US, count)


def insert(row: Row, of: Commit | None = None, index: int = 0) -> Event[Row]:
    return Event(Operation.INSERT, row, None, of or commit(), index)


def update(before: Row, after: Row, of: Commit | None = None, index: int = 0) -> Event[Row]:
    return Event(Operation.UPDATE, after, before, of or commit(), index)


def delete(row: Row, of: Commit | None = None, index: int = 0) -> Event[Row]:
    return Event(Operation.DELETE, row, row, of or commit(), index)
