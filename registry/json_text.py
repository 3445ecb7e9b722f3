"""JSON columns: carried as text, and parsed only where their content is needed.

Rows travel from the database to every component, and most components never read the JSON in them. `JsonText` is a plain
`str` at run time, so every encoder takes a row as it is. `to_json_text` writes one canonical spelling (sorted keys, no
spaces): equal values are equal strings on every backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NewType, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from registry.errors import Invalid

JsonText = NewType("JsonText", str)
JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
T = TypeVar("T")


def to_json_text(value: object, field: str = "document") -> JsonText:
    """Encodes plain data or msgspec structs. Raises `Invalid`, which names `field`, for anything else."""
    try:
        return JsonText(_encoder.encode(value).decode())
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise Invalid(field, value, f"is not JSON: {error}") from error


def parse_json(text: JsonText) -> JsonValue:
    value: JsonValue = msgspec.json.decode(text)
    return value


def parse_json_as(text: JsonText, kind: type[T]) -> T:
    """Parses and checks against a type: ``parse_json_as(file.column_stats, dict[str, ColumnStats])``."""
    return msgspec.json.decode(text, type=kind)


@cache
def json_columns(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Returns the names of the fields that hold JSON text."""
    hints: dict[str, Any] = get_type_hints(kind)
    return frozenset(
        name for name in kind.__struct_fields__ if hints[name] is JsonText or JsonText in get_args(hints[name])
    )


def _plain(value: object) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(order="sorted", enc_hook=_plain)


EMPTY_OBJECT = JsonText("{}")
EMPTY_LIST = JsonText("[]")
