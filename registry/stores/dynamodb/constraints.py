"""The constraints of `registry.schema`, checked here, because DynamoDB knows none: references and values of columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import msgspec
from sqlalchemy import CheckConstraint, ForeignKeyConstraint

from registry import validation
from registry.errors import Invalid
from registry.json_text import json_columns
from registry.models import Row
from registry.schema import table_of
from registry.stores.dynamodb.layout import KINDS, LAYOUTS, ItemKey

_AT_LEAST = re.compile(r"^(\w+) >= (\d+)$")
_ONE_OF = re.compile(r'^"(\w+)" IN \((.*)\)$')

Reference: TypeAlias = tuple[tuple[str, ...], type[Row]]


def parents(row: Row) -> Iterator[tuple[type[Row], ItemKey]]:
    """Yields the rows that this one references, which must exist."""
    for columns, kind in _references(type(row)):
        values = [getattr(row, column) for column in columns]
        if None not in values:
            yield kind, LAYOUTS[kind].key_of(*values)


@cache
def _references(kind: type[Row]) -> tuple[Reference, ...]:
    found = []
    for constraint in table_of(kind).constraints:
        if isinstance(constraint, ForeignKeyConstraint):
            columns = {element.column.name: element.parent.name for element in constraint.elements}
            parent = KINDS[constraint.referred_table.name]
            layout = LAYOUTS[parent]
            found.append((tuple(columns[name] for name in (*layout.scope, *layout.sort)), parent))
    return tuple(found)


def check_values(row: Row) -> None:
    """Raises Invalid for a row that the checks of the schema refuse."""
    kind = type(row)
    for column, minimum in _minima(kind):
        value = getattr(row, column)
        if value is not None and value < minimum:
            raise Invalid(column, value, f"must be at least {minimum}")
    for column, allowed in _choices(kind):
        if getattr(row, column) not in allowed:
            raise Invalid(column, getattr(row, column), f"must be one of {', '.join(allowed)}")
    for column in json_columns(kind):
        value = getattr(row, column)
        if value is None and table_of(kind).c[column].nullable:
            continue
        validation.text(column, value)
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise Invalid(column, value, f"is not JSON: {error}") from error


@cache
def _minima(kind: type[Row]) -> tuple[tuple[str, int], ...]:
    return tuple((one[1], int(one[2])) for text in _texts(kind) if (one := _AT_LEAST.match(text)))


@cache
def _choices(kind: type[Row]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = (one for text in _texts(kind) if (one := _ONE_OF.match(text)))
    return tuple((one[1], tuple(part.strip(" '") for part in one[2].split(","))) for one in found)


def _texts(kind: type[Row]) -> list[str]:
    return [str(one.sqltext) for one in table_of(kind).constraints if isinstance(one, CheckConstraint)]
