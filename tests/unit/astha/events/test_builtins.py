"""Events and rows as plain data, for components that write them elsewhere: nothing private is needed."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import msgspec
import pytest

from astha.events import Commit, Event, Operation
from astha.server import tap
from astha.subscribers import enc_hook
from registry.documents import Document
from registry.models import PUBLISHED, Row, Topic
from registry.position import Position

HELD = {"a": [1, {"b": None}], "ü": "ß"}


def row_of(kind: type[Row]) -> Row:
    """With a document in every JSON column."""
    kinds = get_type_hints(kind)
    return kind(*(_value(kinds[name]) for name in kind.__struct_fields__))


def _value(kind: object) -> object:
    if "Document" in str(kind):
        return Document.of(HELD)
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
    assert all(plain[name] == HELD for name in plain if isinstance(getattr(row, name), Document))
    assert msgspec.to_builtins(row, enc_hook=enc_hook) == plain
    assert json.loads(msgspec.json.encode(row, enc_hook=enc_hook)) == plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row, enc_hook=enc_hook)) == plain


def test_an_event_is_as_the_server_shows_it() -> None:
    event = event_of(Topic("orders", 1, None, Document.of(HELD), 1, 2))
    shown: dict[str, Any] = json.loads(tap._encoder.encode(tap._seen(event)))
    assert json.loads(json.dumps(event.to_builtins())) == shown
    assert shown["data"]["config"] == HELD
    assert shown["last"] is True


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="object has no plain form"):
        msgspec.json.encode({"a": object()}, enc_hook=enc_hook)
