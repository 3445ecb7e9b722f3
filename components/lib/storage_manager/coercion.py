"""Coerces Arrow data to a table's schema, or refuses all of it with the first row and column that cannot be coerced.

Lossless casts are made (int to long, milliseconds to microseconds, a dictionary to its values, whole doubles of pandas
to integers); the values decide whether a cast is lossless. Casts that need an interpretation (text to a number, local
time to an instant) are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from components.lib.lake.files.arrow_nested import inside
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.errors import RowsRefused

_EXACT_INTEGERS = float(2**53)
"""From here on a double does not represent all integers: it may have been another one."""


def coerce(data: pa.Table, schema: TableSchema, *, first_row: int = 1, fill_missing: bool = False) -> pa.Table:
    """Returns the data with exactly the schema's columns, in its order and types. ``first_row`` is the first row's
    number in messages; with ``fill_missing`` a missing optional column becomes one of nulls.
    """
    wanted = schema.arrow()
    if not data.schema.equals(wanted, check_metadata=False):
        check_columns(data.column_names, wanted, fill_missing=fill_missing)
        data = pa.table([_cast(data, field, first_row) for field in wanted], schema=wanted)
    elif data.schema.metadata != wanted.metadata or not data.schema.equals(wanted, check_metadata=True):
        data = pa.table(data.columns, schema=wanted)
    for field in wanted:
        check_nulls(data.column(field.name), field, first_row)
    return data


def check_columns(given: list[str], wanted: pa.Schema, *, fill_missing: bool) -> None:
    names = set(given)
    if len(names) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise RowsRefused("appears twice in the input", column=twice)
    for name in given:
        if wanted.get_field_index(name) < 0:
            raise RowsRefused(
                f"is not in the table, which has {_listed(wanted.names)}: leave it out, or add it to the table first",
                column=name,
            )
    for field in wanted:
        if field.name not in names and not field.nullable:
            raise RowsRefused("is missing, and the table requires it", column=field.name)
        if field.name not in names and not fill_missing:
            raise RowsRefused(
                "is missing: add it, if only with nulls, or fill it with nulls by --fill-missing "
                "(StorageSettings(fill_missing=True))",
                column=field.name,
            )


def check_nulls(column: pa.ChunkedArray, field: pa.Field, first_row: int) -> None:
    """Raises `RowsRefused` if a required value is null, at any depth."""
    if not _has_bad_null(column, field):
        return
    row = first_failing(len(column), lambda end: _has_bad_null(column.slice(0, end), field))
    path = _bad_path(column.slice(row, 1), field, field.name)
    raise RowsRefused("is null, and the table requires a value", row=first_row + row, column=path)


def first_failing(length: int, fails: Callable[[int], bool]) -> int:
    """Returns the index of the first row that fails, by bisection: `fails(n)` says whether the first n rows fail."""
    low, high = 0, length  # the first `high` rows fail, the first `low` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high - 1


def castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether a cast preserves the meaning; single values may still be out of range."""
    given, wanted = _storage(given), _storage(wanted)
    if given == wanted or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return castable(given.value_type, wanted)
    if types.is_struct(given) and types.is_struct(wanted):
        return _struct_castable(given, wanted)
    if types.is_map(given) and types.is_map(wanted):
        return castable(given.key_type, wanted.key_type) and castable(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return castable(given.value_type, wanted.value_type)
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    return any(is_given(given) and is_wanted(wanted) for is_given, is_wanted in _SAME_MEANING)


def _cast(data: pa.Table, field: pa.Field, first_row: int) -> pa.ChunkedArray:
    if data.schema.get_field_index(field.name) < 0:
        return pa.chunked_array([pa.nulls(data.num_rows, field.type)])
    column = data.column(field.name)
    if column.type == field.type:
        return column
    if not castable(column.type, field.type) and not _is_integers_of_pandas(data.schema, column.type, field.type):
        raise RowsRefused(f"is {column.type} where the table has {field.type}", column=field.name)
    try:
        return _cast_values(column, field.type)
    except pa.ArrowInvalid:
        check_nulls(column, field, first_row)  # Arrow raises the same error for nulls inside structs
        row = first_failing(len(column), lambda end: not _casts(column.slice(0, end), field.type))
        raise RowsRefused(
            f"{_shown(column[row])} ({column.type}) does not fit into {field.type} without loss",
            row=first_row + row,
            column=field.name,
        ) from None
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise RowsRefused(f"is {column.type} where the table has {field.type}: {error}", column=field.name) from error


def _cast_values(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if types.is_dictionary(column.type):
        column = _decoded(column)
    if types.is_floating(column.type) and types.is_integer(wanted):
        beyond = pc.any(pc.greater_equal(pc.abs(column), _EXACT_INTEGERS)).as_py()
        if beyond:
            raise pa.ArrowInvalid("a double does not represent all integers of this size")
    if types.is_integer(column.type) and types.is_decimal(wanted):  # Arrow checks the type's range, not the values
        column = column.cast(pa.decimal128(38, wanted.scale))
    return column.cast(wanted, safe=True)


def _is_integers_of_pandas(schema: pa.Schema, given: pa.DataType, wanted: pa.DataType) -> bool:
    """pandas makes doubles of integers when some are null, in frames and in the Parquet files that it writes."""
    of_pandas = schema.metadata is not None and b"pandas" in schema.metadata
    return bool(of_pandas and types.is_float64(given) and types.is_integer(wanted))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the values of a dictionary. Arrow decodes no views, which Polars uses for its categories."""
    kind = column.type.value_type
    if types.is_string_view(kind):
        indices = column.type.index_type
        plain = pa.dictionary(indices, pa.large_string(), column.type.ordered)
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.large_string()))
            for chunk in column.chunks
        ]
        column, kind = pa.chunked_array([chunk.cast(plain) for chunk in chunks], plain), pa.large_string()
    return column.cast(kind)


def _casts(column: pa.ChunkedArray, wanted: pa.DataType) -> bool:
    try:
        _cast_values(column, wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _struct_castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    names = {field.name for field in wanted}
    present = {field.name for field in given}
    return (
        len(present) == given.num_fields
        and present <= names
        and all(field.nullable or field.name in present for field in wanted)
        and all(castable(field.type, wanted.field(field.name).type) for field in given)
    )


def _has_bad_null(column: pa.ChunkedArray, field: pa.Field) -> bool:
    if not field.nullable and column.null_count:
        return True
    return any(_has_bad_null(_inner(column, inner), inner) for inner in _requiring(field.type, column.type))


def _bad_path(column: pa.ChunkedArray, field: pa.Field, path: str) -> str:
    if not field.nullable and column.null_count:
        return path
    for inner in _requiring(field.type, column.type):
        values = _inner(column, inner)
        if _has_bad_null(values, inner):
            return _bad_path(values, inner, f"{path}.{inner.name}")
    return path


def _requiring(wanted: pa.DataType, given: pa.DataType | None = None) -> list[pa.Field]:
    """Returns the fields inside a type that are required or contain required ones, among those in ``given``."""
    if types.is_struct(wanted):
        inner = [field for field in wanted if given is None or given.get_field_index(field.name) >= 0]
    elif types.is_map(wanted):
        inner = [wanted.key_field, wanted.item_field]
    elif _is_list(wanted):
        inner = [wanted.value_field]
    else:
        return []
    return [field for field in inner if not field.nullable or _requiring(field.type)]


def _inner(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Returns the values inside rows that are not null: a field of a null struct is not required."""
    chunks = [inside(chunk, field.name) for chunk in column.drop_null().chunks]
    return pa.chunked_array(chunks) if chunks else pa.chunked_array([], field.type)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_small_float(kind: pa.DataType) -> bool:
    return bool(types.is_float16(kind) or types.is_float32(kind))


Test = Callable[[pa.DataType], bool]

_SAME_MEANING: tuple[tuple[Test, Test], ...] = (
    (types.is_integer, types.is_integer),
    (types.is_integer, types.is_floating),
    (types.is_integer, types.is_decimal),
    (_is_small_float, types.is_float64),
    (types.is_float16, types.is_float32),
    (types.is_decimal, types.is_decimal),
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (types.is_date, types.is_date32),
    (types.is_time, types.is_time64),
)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _shown(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except ValueError:  # nanoseconds, which Python cannot represent
        text = str(value.value)
    return text if len(text) <= 60 else text[:57] + "..."
