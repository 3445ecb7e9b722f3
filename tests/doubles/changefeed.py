"""The rows of a changefeed, made by hand as CockroachDB makes them."""

from __future__ import annotations

import json

import msgspec

from astha.sources.cockroachdb.row_stream import FeedRow
from registry.models import Row


def change(wall: int, after: Row | None, before: Row | None = None, *, logical: int = 0) -> FeedRow:
    row = after or before
    assert row is not None
    key = json.dumps([getattr(row, name) for name in row.key])
    return row.table.encode(), key.encode(), _value(wall, logical, after, before)


def nothing(wall: int, row: Row) -> FeedRow:
    """A row that its transaction inserted and deleted."""
    return row.table.encode(), b"[0]", _value(wall, 0, None, None)


def mark(wall: int, logical: int = 0) -> FeedRow:
    return None, None, b'{"resolved":"%d.%010d"}' % (wall, logical)


def _value(wall: int, logical: int, after: Row | None, before: Row | None) -> bytes:
    timestamp = f"{wall}.{logical:010d}"
    return msgspec.json.encode({"after": after, "before": before, "mvcc_timestamp": timestamp, "updated": timestamp})
