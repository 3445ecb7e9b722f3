"""Whatever a row holds, every format reads back as the row, and its keys do not depend on the format."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from components.lib.change_formats import FormatSettings, key_of, open_format
from registry.json_text import JsonText
from registry.models import PUBLISHED, Row
from registry.position import Position
from tests.unit.components.lib.change_formats.examples import NOW_MS, ORIGIN, commit, delete, insert, update

SETTINGS = [
    FormatSettings(),
    FormatSettings(schemas=True),
    FormatSettings(format="json"),
    FormatSettings(format="cloudevents"),
    FormatSettings(format="cloudevents", mode="binary"),
]

int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def json_texts(draw: st.DrawFn) -> JsonText:
    """As a writer spelled it: with spaces and escapes, or without."""
    indent, ascii_only = draw(st.sampled_from([None, 1])), draw(st.booleans())
    return JsonText(json.dumps(draw(json_values), indent=indent, ensure_ascii=ascii_only))


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is JsonText:
        return json_texts()
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_args(hint):
        return st.one_of([_values(each) for each in get_args(hint)])
    return {int: int64, str: text, bool: st.booleans(), type(None): st.none()}[hint]


def _rows(kind: type[Row]) -> st.SearchStrategy[Row]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: _values(hints[name]) for name in kind.__struct_fields__})


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Row, Row]:
    rows = _rows(draw(st.sampled_from(PUBLISHED)))
    return draw(rows), draw(rows)


@given(pairs())
def test_rows_read_back_from_every_format(rows: tuple[Row, Row]) -> None:
    before, after = rows
    shared = commit(3)
    for settings in SETTINGS:
        encoder = open_format(settings, "kafka")
        for event in (insert(after, shared, 0), update(before, after, shared, 1), delete(before, shared, 2)):
            message = encoder.change(event, ORIGIN, NOW_MS)
            old, new = _images(json.loads(message.value or b""), settings, event.operation == "DELETE")
            assert old == (None if event.operation == "INSERT" else _columns(before, settings))
            assert new == (None if event.operation == "DELETE" else _columns(after, settings))
        read = encoder.snapshot_row(after, Position(1), ORIGIN, NOW_MS, last=False)
        assert _images(json.loads(read.value or b""), settings, False) == (None, _columns(after, settings))


@given(pairs())
def test_keys_are_equal_if_and_only_if_the_primary_keys_are(rows: tuple[Row, Row]) -> None:
    one, other = rows
    names = type(one).key
    twin = msgspec.structs.replace(other, **{name: getattr(one, name) for name in names})
    assert key_of(twin) == key_of(one)
    same = all(getattr(one, name) == getattr(other, name) for name in names)
    assert (key_of(other) == key_of(one)) is same
    for settings in SETTINGS:
        encoder = open_format(settings, "mqtt")
        assert encoder.key(twin, ORIGIN) == encoder.key(one, ORIGIN) == encoder.change(insert(one), ORIGIN, 0).key
        assert settings.schemas or encoder.key(one, ORIGIN) == key_of(one)


def _images(value: Any, settings: FormatSettings, deleted: bool) -> tuple[Any, Any]:
    """Returns the row before and the row after, from a message's value."""
    if settings.format == "json":
        return value["before"], None if deleted else value["data"]
    if settings.format == "debezium":
        payload = value["payload"] if settings.schemas else value
    else:
        payload = value["data"] if settings.mode == "structured" else value
    return payload["before"], payload["after"]


def _columns(row: Row, settings: FormatSettings) -> dict[str, Any]:
    return msgspec.structs.asdict(row) if settings.format == "debezium" else row.to_builtins()
