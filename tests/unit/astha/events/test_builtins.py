"""Events and rows as plain data, through the public API, for components that write them elsewhere."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import msgspec
import pytest

from astha.events import Commit, Event, Operation
from astha.server import event_stream
from registry.json_text import json_columns, to_json_text
from registry.models import PUBLISHED, Row, Topic
from registry.position import Position

HELD = {"a": [1, {"b": None}], "ü": "ß"}


def row_of(kind: type[Row]) -> Row:
    """With a document in every JSON column."""
    kinds = get_type_hints(kind)
    return kind(*(_value(kinds[name]) for name in kind.__struct_fields__))


def _value(kind: object) -> object:
    if "JsonText" in str(kind):
        return to_json_text(HELD)
    return "text" if "str" in str(kind) or "Literal" in str(kind) else 7


def event_of(row: Row) -> Event[Row]:
    commit = Commit(5, Position(900), 1_000_001, 2)
    return Event(Operation.UPDATE, row, row, commit, 1)


@pytest.mark.parametrize("kind", PUBLISHED, ids=[kind.table for kind in PUBLISHED])
def test_every_kind_of_row(kind: type[Row]) -> None:
    row = row_of(kind)
    plain = row.to_builtins()
    assert list(plain) == list(kind.__struct_fields__)
    assert json.loads(json.dumps(plain)) == plain
    assert {name for name in plain if plain[name] == HELD} == json_columns(kind)


@pytest.mark.parametrize("kind", PUBLISHED, ids=[kind.table for kind in PUBLISHED])
def test_msgspec_and_json_encode_a_row_directly(kind: type[Row]) -> None:
    row = row_of(kind)
    plain = msgspec.to_builtins(row)
    assert json.loads(json.dumps(plain)) == plain
    assert json.loads(msgspec.json.encode(row)) == plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row)) == plain


def test_an_event_is_encoded_as_the_server_shows_it() -> None:
    event = event_of(Topic("orders", 1, None, to_json_text(HELD), 1, 2))
    shown: dict[str, Any] = json.loads(event_stream._encoder.encode(event_stream._line(event)))
    assert json.loads(json.dumps(event.to_builtins())) == shown
    assert shown["data"]["config"] == HELD
    assert shown["last"] is True
