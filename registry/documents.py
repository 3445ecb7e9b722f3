"""JSON columns, carried as text and parsed only by who looks inside.

Rows travel from the database to every component; most never read the JSON in them. A `Document` is the text
itself, in one canonical spelling (sorted keys, no spaces), so that equal documents are equal strings on every backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from registry.errors import Invalid

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
T = TypeVar("T")


class Document(str):
    """A JSON value as canonical text."""

    __slots__ = ()

    @classmethod
    def of(cls, value: object, field: str = "document") -> Document:
        """Encode plain data or msgspec structs. A `Document` passes as it is."""
        if isinstance(value, Document):
            return value
        try:
            return cls(encode(value))
        except (TypeError, ValueError, UnicodeError, RecursionError) as error:
            raise Invalid(field, value, f"is not JSON: {error}") from error

    def load(self) -> JsonValue:
        value: JsonValue = msgspec.json.decode(str(self))
        return value

    def load_as(self, kind: type[T]) -> T:
        """Parse and check against a type: ``file.column_stats.load_as(dict[str, ColumnStats])``."""
        return msgspec.json.decode(str(self), type=kind, dec_hook=_nested)


def encode(value: object) -> str:
    """Canonical JSON. A document inside is not quoted but becomes part of the whole."""
    return _encoder.encode(value).decode()


def enc_hook(value: object) -> object:
    """For msgspec's own encoders, of any format: ``msgspec.json.Encoder(enc_hook=enc_hook)``. A document becomes what
    it holds. Needed because msgspec refuses subclasses of str.
    """
    if isinstance(value, Document):
        return value.load()
    raise NotImplementedError(f"{type(value).__name__} has no plain form")


def to_builtins(value: object) -> JsonValue:
    """Dicts, lists, strings and numbers, ready for ``json.dumps``; a document becomes what it holds."""
    plain: JsonValue = msgspec.to_builtins(value, enc_hook=enc_hook)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, Document):
        return msgspec.Raw(value.encode())
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _nested(kind: type, value: object) -> object:
    if kind is Document:
        return Document.of(value)
    raise NotImplementedError(f"no reading of {kind.__name__} from JSON")


_encoder = msgspec.json.Encoder(order="sorted", enc_hook=_plain)


EMPTY_OBJECT = Document("{}")
EMPTY_LIST = Document("[]")
