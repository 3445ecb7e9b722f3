"""Plain JSON: what `astha tail --json` shows, with the epoch."""

from __future__ import annotations

import json

import pytest

from components.lib.change_formats import ChangeFormat, FormatSettings, open_format
from registry.position import Position
from tests.fixtures.rows import extreme_rows
from tests.unit.components.lib.change_formats.examples import (
    NOW_MS,
    ORIGIN,
    SEGMENT,
    TOPIC,
    commit,
    delete,
    insert,
    update,
)


@pytest.fixture
def plain() -> ChangeFormat:
    return open_format(FormatSettings(format="json"), "kafka")


def test_an_insert(plain: ChangeFormat) -> None:
    message = plain.change(insert(TOPIC), ORIGIN, NOW_MS)
    assert message.headers == ()
    assert json.loads(message.value or b"") == {
        "table": "topics",
        "operation": "INSERT",
        "position": 95,
        "transaction": 1042,
        "index": 0,
        "last": True,
        "committed_at_us": 1_700_000_000_123_456,
        "data": {
            "name": "orders",
            "partition_count": 3,
            "retention_ms": None,
            "config": {"acks": 1},
            "created_at": 10,
            "updated_at": 20,
        },
        "before": None,
        "epoch": 7,
    }


def test_every_change_has_the_shape_of_the_event_stream(plain: ChangeFormat) -> None:
    for row in extreme_rows():
        shared = commit(3)
        for event in (insert(row, shared, 0), update(row, row, shared, 1), delete(row, shared, 2)):
            value = plain.change(event, ORIGIN, NOW_MS).value
            assert json.loads(value or b"") == {**event.to_builtins(), "epoch": 7}


@pytest.mark.parametrize("last", [True, False])
def test_a_row_of_a_snapshot(plain: ChangeFormat, last: bool) -> None:
    value = plain.snapshot_row(SEGMENT, Position(90), ORIGIN, NOW_MS, last).value
    assert json.loads(value or b"") == {
        "table": "segments",
        "operation": "READ",
        "position": 90,
        "transaction": None,
        "index": None,
        "last": last,
        "committed_at_us": None,
        "data": SEGMENT.to_builtins(),
        "before": None,
        "epoch": 7,
    }
