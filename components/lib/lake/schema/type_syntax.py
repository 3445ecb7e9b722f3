"""Types as users write them: ``decimal(9,2)``, ``list<string!>``, ``struct<city: string!, at: timestamptz>``.

A ``!`` after a type makes the value required. Columns and fields are ``name: type``; a name with special characters is
quoted with backquotes. `show` is the inverse of `parse_type`. The syntax has no ids: parsed fields have `UNNUMBERED`
ids, and `number` assigns them in Iceberg's own order.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from astha.errors import ConfigError
from components.lib.lake.schema.table_schema import SchemaProblem, check_type, inner_fields
from registry.validation import MAX_NAME

UNNUMBERED = -1

_SIMPLE: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "binary": BinaryType(),
}
_ALIASES = {"bool": "boolean", "integer": "int", "bigint": "long", "text": "string", "varchar": "string"}
_VERSION_3_TYPES = ("timestamp_ns", "timestamptz_ns", "variant", "geometry", "geography", "unknown")
_TYPES = [*_SIMPLE, "decimal(P,S)", "fixed(N)", "list<T>", "map<K,V>", "struct<name: T, ...>"]
_TOKEN = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[^\s`:,<>()\[\]!]+)|(?P<mark>[:,<>()\[\]!]))")
_PLAIN_NAME = re.compile(r"[^\s`:,<>()\[\]!.]+")
_MAX_DEPTH = 50
_MAX_DIGITS = 10  # of a number in a type


class SyntaxProblem(SchemaProblem, ConfigError):
    """Text that cannot be parsed. The message names the column and the remedy."""


def parse_type(text: str, column: str = "") -> tuple[IcebergType, bool]:
    """Returns the type, and whether it is required. ``column`` is for messages."""
    reader = _Reader(text, f"column {column}: {text!r}" if column else repr(text), column)
    found = reader.type_and_mark(column)
    reader.end()
    return found


def parse_column(text: str) -> NestedField:
    """Parses ``name: type`` or ``name:type!``."""
    reader = _Reader(text, f"column {text!r}", "")
    field = reader.field("")
    reader.end()
    return field


def number(fields: Sequence[NestedField], next_id: Callable[[], int]) -> tuple[NestedField, ...]:
    """Returns the fields with fresh ids, assigned in Iceberg's own order."""
    check_names(fields)
    return assign_fresh_schema_ids(Schema(*fields), next_id).fields


def check_names(fields: Sequence[NestedField], above: str = "") -> None:
    """Checks the names of new columns, at every depth."""
    for place, field in enumerate(fields):
        check_new_name(field.name, fields[:place], above)
        check_names(inner_fields(field.field_type), f"{above}.{field.name}" if above else field.name)


def check_new_name(name: str, others: Sequence[NestedField], within: str = "") -> None:
    """Is stricter than Iceberg, so that every engine and every dotted path can distinguish columns."""
    path = f"{within}.{name}" if within else name
    if "." in name or not name.strip() or not name.isprintable():
        raise SyntaxProblem(f"column {path!r}: a name is not blank, without dots and control characters")
    if len(name) > MAX_NAME:
        raise SyntaxProblem(f"column {path[:40]}...: a name has at most {MAX_NAME} characters")
    for other in others:
        if other.name.lower() == name.lower():
            case = "" if other.name == name else f" ({other.name} differs only in case, which many engines ignore)"
            raise SyntaxProblem(f"column {path} appears twice{case}: rename or remove one")


def show(kind: IcebergType, *, required: bool = False) -> str:
    mark = "!" if required else ""
    match kind:
        case StructType():
            return f"struct<{', '.join(map(show_field, kind.fields))}>{mark}"
        case ListType():
            return f"list<{show(kind.element_type, required=kind.element_required)}>{mark}"
        case MapType():
            return f"map<{show(kind.key_type)}, {show(kind.value_type, required=kind.value_required)}>{mark}"
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale}){mark}"
        case FixedType():
            return f"fixed({len(kind)}){mark}"
        case _:
            return f"{kind}{mark}"


def show_field(field: NestedField) -> str:
    return f"{show_name(field.name)}: {show(field.field_type, required=field.required)}"


def show_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, shown: str, column: str) -> None:
        self._shown = shown
        self._column = column
        self._tokens = self._cut(text)
        self._place = 0
        self._depth = 0

    def _cut(self, text: str) -> list[tuple[str, bool]]:
        """Returns the tokens, each with whether it is punctuation."""
        tokens: list[tuple[str, bool]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None:
                raise SyntaxProblem(f"{self._shown}: a backquote is not closed")
            quoted, word, mark = match.group("quoted", "word", "mark")
            tokens.append((mark, True) if mark else (quoted.replace("``", "`") if quoted else word, False))
            place = match.end()
        return tokens

    def field(self, above: str) -> NestedField:
        name = self._word("a name")
        if not self._take(":"):
            raise SyntaxProblem(f"{self._shown}: after {name!r} comes a colon and its type, such as {name}: string")
        kind, required = self.type_and_mark(f"{above}{name}")
        return NestedField(UNNUMBERED, name, kind, required=required)

    def type_and_mark(self, path: str) -> tuple[IcebergType, bool]:
        kind = self._type(path)
        try:
            check_type(path or self._shown, kind)
        except SchemaProblem as problem:
            raise SyntaxProblem(str(problem)) from problem
        return kind, self._take("!")

    def end(self) -> None:
        if self._place < len(self._tokens):
            raise SyntaxProblem(f"{self._shown}: {self._tokens[self._place][0]!r} is after the end of the type")

    def _type(self, path: str) -> IcebergType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise SyntaxProblem(f"{self._shown}: types are nested deeper than {_MAX_DEPTH}")
        try:
            word = self._word("a type").lower()
            word = _ALIASES.get(word, word)
            if word in _SIMPLE:
                return _SIMPLE[word]
            match word:
                case "decimal":
                    return self._decimal()
                case "fixed":
                    return self._fixed()
                case "list":
                    return self._list(path)
                case "map":
                    return self._map(path)
                case "struct":
                    return self._struct(path)
            raise SyntaxProblem(f"{self._shown}: {_unknown(word)}")
        finally:
            self._depth -= 1

    def _decimal(self) -> DecimalType:
        precision, scale = self._numbers(2, "decimal(9,2)")
        if not 1 <= precision <= 38:
            raise SyntaxProblem(f"{self._shown}: decimal({precision},{scale}): precision is between 1 and 38")
        return DecimalType(precision, scale)

    def _fixed(self) -> FixedType:
        (length,) = self._numbers(1, "fixed(16)")
        if length >= 1 << 31:
            raise SyntaxProblem(f"{self._shown}: fixed({length}): a value has less than 2 GiB")
        return FixedType(length)

    def _list(self, path: str) -> ListType:
        self._expect("<", "list<string>")
        element, required = self.type_and_mark(f"{path}.element")
        self._expect(">", "list<string>")
        return ListType(UNNUMBERED, element, element_required=required)

    def _map(self, path: str) -> MapType:
        self._expect("<", "map<string, long>")
        key, _ = self.type_and_mark(f"{path}.key")
        self._expect(",", "map<string, long>")
        value, required = self.type_and_mark(f"{path}.value")
        self._expect(">", "map<string, long>")
        return MapType(UNNUMBERED, key, UNNUMBERED, value, value_required=required)

    def _struct(self, path: str) -> StructType:
        self._expect("<", "struct<name: string>")
        fields = [self.field(f"{path}.")]
        while self._take(","):
            fields.append(self.field(f"{path}."))
        self._expect(">", "struct<name: string>")
        return StructType(*fields)

    def _numbers(self, many: int, example: str) -> list[int]:
        closing = ")" if self._take("(") else "]"
        if closing == "]":
            self._expect("[", example)
        numbers = []
        for place in range(many):
            if place:
                self._expect(",", example)
            word = self._word("a number")
            if not (word.isascii() and word.isdigit()):
                raise SyntaxProblem(f"{self._shown}: {word!r} is not a number: write it as {example}")
            if len(word) > _MAX_DIGITS:
                raise SyntaxProblem(f"{self._shown}: {word[:20]}... is too large: write it as {example}")
            numbers.append(int(word))
        self._expect(closing, example)
        return numbers

    def _word(self, what: str) -> str:
        if self._place == len(self._tokens):
            raise SyntaxProblem(f"{self._shown}: {what} is missing at the end")
        token, mark = self._tokens[self._place]
        if mark:
            raise SyntaxProblem(f"{self._shown}: {token!r} is where {what} is expected")
        self._place += 1
        return token

    def _take(self, mark: str) -> bool:
        if self._place < len(self._tokens) and self._tokens[self._place] == (mark, True):
            self._place += 1
            return True
        return False

    def _expect(self, mark: str, example: str) -> None:
        if not self._take(mark):
            raise SyntaxProblem(f"{self._shown}: {mark!r} is missing: write it as {example}")


def _unknown(word: str) -> str:
    if word in _VERSION_3_TYPES:
        return f"type {word} needs Iceberg v3, and tables here are v2: use timestamp, timestamptz, string or binary"
    close = difflib.get_close_matches(word, [*_SIMPLE, "decimal", "fixed", "list", "map", "struct"], 1)
    hint = f"did you mean {close[0]}?" if close else f"types are {', '.join(_TYPES)}"
    return f"no type {word!r}: {hint}"
