"""JSON lines: one object per row, whose values are read by the table's types.

Decimals are text or numbers, dates and times in ISO form, bytes in base64, maps objects or lists of pairs. If a key
appears twice in an object, the last value counts.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.errors import RowsRefused
from components.lib.storage_manager.row_conversion import table_from_rows

Read: TypeAlias = Callable[[Any], Any]

_ROWS = 20_000  # at a time
_BYTES = 64 << 20  # of text at a time, unless one row alone has more


def read_json(lines: Iterable[bytes], schema: TableSchema, *, fill_missing: bool) -> Iterator[pa.Table]:
    """Empty lines are skipped, and not counted as rows."""
    readers = {field.name: read for field in schema.iceberg.fields if (read := _reader(field.field_type))}
    first_row = 1
    for some in line_chunks(lines):
        objects = [_object(line, number, readers) for number, line in enumerate(some, first_row)]
        yield table_from_rows(objects, schema, first_row=first_row, fill_missing=fill_missing)
        first_row += len(objects)


def line_chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields lines that are not empty, some thousands at a time."""
    some: list[bytes] = []
    size = 0
    for row in lines:
        if not row.strip():
            continue
        some.append(row)
        size += len(row)
        if len(some) == _ROWS or size >= _BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _object(line: bytes, number: int, readers: Mapping[str, Read]) -> dict[str, Any]:
    try:
        row = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RowsRefused(f"not a JSON object: {error}", row=number) from error
    except InvalidOperation as error:
        raise RowsRefused("a number whose exponent is out of range", row=number) from error
    except RecursionError:
        raise RowsRefused("lists and objects are nested too deeply: no table has such a type", row=number) from None
    for name, read in readers.items():
        value = row.get(name)
        if value is not None:
            row[name] = read(value)
    return row


# A float would lose a decimal's digits; `_float` converts values of float columns.
_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


def _reader(kind: IcebergType) -> Read | None:
    """Returns a reader for types that JSON does not have. A value that cannot be read stays as it is, and is refused
    later, with its row and column.
    """
    match kind:
        case StructType():
            inner = {field.name: read for field in kind.fields if (read := _reader(field.field_type))}
            return _struct_reader(inner) if inner else None
        case ListType():
            element = _reader(kind.element_type)
            return _list_reader(element) if element else None
        case MapType():
            return _map_reader(_reader(kind.key_type) or _same, _reader(kind.value_type) or _same)
        case _:
            read = next((read for kinds, read in _READERS if isinstance(kind, kinds)), None)
            return _tolerant(read) if read else None


_READERS: tuple[tuple[tuple[type[IcebergType], ...], Read], ...] = (
    ((FloatType, DoubleType), lambda value: _float(value) if isinstance(value, Decimal) else value),
    ((DecimalType,), lambda value: Decimal(value) if isinstance(value, str) else value),
    ((DateType,), date.fromisoformat),
    ((TimeType,), time.fromisoformat),
    ((TimestampType, TimestamptzType), datetime.fromisoformat),
    ((BinaryType, FixedType), lambda value: b64decode(value, validate=True)),
)


def _float(value: Decimal) -> float | Decimal:
    """1e400 does not become infinity: it stays a decimal, and is refused."""
    found = float(value)
    return found if isfinite(found) else value


def _tolerant(read: Read) -> Read:
    def attempt(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, InvalidOperation):
            return value

    return attempt


def _struct_reader(inner: Mapping[str, Read]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: inner[name](item) if item is not None and name in inner else item for name, item in value.items()}

    return read


def _list_reader(element: Read) -> Read:
    def read(value: Any) -> Any:
        return [None if item is None else element(item) for item in value] if isinstance(value, list) else value

    return read


def _map_reader(key: Read, item: Read) -> Read:
    def read(value: Any) -> Any:
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list) or any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
            return value
        return [(key(name), None if found is None else item(found)) for name, found in pairs]

    return read


def _same(value: Any) -> Any:
    return value
