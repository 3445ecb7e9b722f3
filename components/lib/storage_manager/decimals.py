"""Decimals as text, and which of them are safe to give to Arrow.

Arrow rescales by a table of 38 powers of ten without checking its bounds: 1.25 with 60 zeros after it becomes 0.00, and
1e-999999999 aborts the process. That holds for Python's decimals, for JSON and for CSV.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

from components.lib.storage_manager.coercion import first_failing
from components.lib.storage_manager.errors import RowsRefused

_MAX_DIGITS = 38  # of a decimal in Iceberg and Arrow
_MANY_PLACES = r"[eE]-|\.[0-9]{39}"


def is_scalable(value: Decimal, scale: int) -> bool:
    """Returns whether Arrow can rescale it safely, not whether it is in range."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and abs(exponent + scale) <= _MAX_DIGITS


def with_decimals(table: pa.Table, name: str, wanted: pa.Decimal128Type, first_row: int) -> pa.Table:
    """Returns the table with a column of text converted to decimals."""
    column = pc.utf8_trim_whitespace(table.column(name))
    for place in pc.indices_nonzero(pc.match_substring_regex(column, _MANY_PLACES)).to_pylist():
        if not _is_safe(column[place].as_py(), wanted.scale):
            raise _refused(column, place, wanted, name, first_row)
    try:
        values = column.cast(wanted)
    except pa.ArrowInvalid:
        place = first_failing(len(column), lambda end: not _casts(column.slice(0, end), wanted))
        raise _refused(column, place, wanted, name, first_row) from None
    return table.set_column(table.schema.get_field_index(name), name, values)


def _is_safe(text: str, scale: int) -> bool:
    try:
        return is_scalable(Decimal(text), scale)
    except InvalidOperation:
        return False


def _casts(column: pa.ChunkedArray, wanted: pa.DataType) -> bool:
    try:
        column.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _refused(column: pa.ChunkedArray, place: int, wanted: pa.DataType, name: str, first_row: int) -> RowsRefused:
    text = column[place].as_py()
    shown = repr(text if len(text) <= 60 else f"{text[:57]}...")
    return RowsRefused(f"{shown} does not fit into {wanted} without loss", row=first_row + place, column=name)
