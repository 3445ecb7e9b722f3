"""JSON objects as Arrow columns, a whole batch at a time.

Arrow's own reader is used where it is as strict as `astha insert`. A batch that it refuses, or might accept too easily,
is read again value by value by `components.lib.storage_manager.json_rows`, which decides and names the row.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused
from components.lib.storage_manager.json_rows import read_json
from components.lib.storage_manager.uuids import with_uuids

_SAME = (BooleanType, IntegerType, LongType, StringType, DecimalType)
_EXACT: dict[type[IcebergType], float] = {FloatType: 2.0**24, DoubleType: 2.0**53}
"""Below this, whole numbers are exact in the type, so that none is rounded silently."""
_SPACE = " \t\n\r"
_UNSAFE = r"NaN|Inf|[\n\r]"
"""Arrow accepts NaN and Infinity as numbers, and an end of line as a space."""
_UNSAFE_DECIMALS = (
    r"""[:,\[\s"][-+]?[0-9.]+[eE]-[0-9]+["\s,}\]]"""  # a negative exponent
    r"|\.[0-9]{39}"
    r"|\\u00(?:2[bBdDeE]|3[0-9]|[46]5)"  # either of them, escaped
)
"""Numbers that may have more than 38 places: see `components.lib.storage_manager.decimals`."""
_AS_TEXT = (DateType, TimestampType, TimestamptzType, UUIDType)


class JsonColumns:
    """Reads values into one schema. A column that an object does not have is null, if the table allows that."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._wanted = schema.arrow()
        fields = schema.iceberg.fields
        self._quick = all(_is_quick(field.field_type) for field in fields)
        self._decimals = [field.name for field in self._wanted if _has_decimals(field.type)]
        self._unsafe = f"{_UNSAFE}|{_UNSAFE_DECIMALS}" if self._decimals else _UNSAFE
        self._as_text = {field.name for field in fields if isinstance(field.field_type, _AS_TEXT)}
        self._uuids = [field.name for field in fields if isinstance(field.field_type, UUIDType)]
        self._floats = {
            field.name: _EXACT[type(field.field_type)] for field in fields if type(field.field_type) in _EXACT
        }
        self._read = pa.schema(
            [
                pa.field(
                    field.name, pa.string() if field.name in self._as_text else _readable(field.type), field.nullable
                )
                for field in self._wanted
            ]
        )

    def rows(self, values: pa.Array) -> pa.Table:
        """Returns as many rows as values, with exactly the schema's columns. Raises `RowsRefused` for the first that is
        none.
        """
        found = self._at_once(values) if self._quick else None
        return coerce(self._one_by_one(values), self._schema) if found is None else found

    def _at_once(self, values: pa.Array) -> pa.Table | None:
        """Returns None if Arrow can't read it, or if its result might be wrong.

        There is one value per line, each from brace to brace, so each line holds at least one object. If there are as
        many objects as lines, each line is one.
        """
        if values.null_count:
            return None
        try:
            text = values.cast(pa.string())  # which must be UTF-8
            if not _are_braced(text):
                text = pc.ascii_trim(text, _SPACE)
                if not _are_braced(text):
                    return None
            if _any(pc.match_substring_regex(text, self._unsafe)):
                return None
            joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text), "\n")
            lines = joined[0].as_buffer()
            table = pj.read_json(
                pa.BufferReader(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="error"),
            )
            if table.num_rows != len(values):
                return None
            if any(_any(pc.greater_equal(pc.abs(table[name]), most)) for name, most in self._floats.items()):
                return None
            for name in self._decimals:
                table[name].validate(full=True)  # the reader accepts 12345678 for decimal(9,2)
            return coerce(self._typed(table), self._schema)
        except (pa.ArrowException, RowsRefused):
            return None

    def _typed(self, table: pa.Table) -> pa.Table:
        for name in self._uuids:
            table = with_uuids(table, name, 1)
        columns = [
            table.column(field.name).cast(field.type) if field.name in self._as_text - set(self._uuids)
            else table.column(field.name)
            for field in self._wanted
        ]  # fmt: skip
        return pa.table(columns, names=self._wanted.names)

    def _one_by_one(self, values: pa.Array) -> pa.Table:
        lines = values.to_pylist()
        for number, line in enumerate(lines, 1):
            if line is None or not line.strip():
                raise RowsRefused("the value is null" if line is None else "the value is empty", row=number)
        tables = list(read_json(lines, self._schema, fill_missing=True))
        return pa.concat_tables(tables) if tables else self._wanted.empty_table()


def _is_quick(kind: IcebergType) -> bool:
    return isinstance(kind, _AS_TEXT) or type(kind) in _EXACT or _is_plain(kind)


def _is_plain(kind: IcebergType) -> bool:
    """Whether Arrow reads it as it is, also nested."""
    match kind:
        case StructType():
            return all(_is_plain(field.field_type) for field in kind.fields)
        case ListType():
            return _is_plain(kind.element_type)
        case _:
            return isinstance(kind, _SAME)


def _readable(kind: pa.DataType) -> pa.DataType:
    """Returns a type for Arrow's reader, which has no large lists and wants required fields inside of missing ones."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        element = kind.value_field
        return pa.list_(pa.field(element.name, _readable(element.type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _readable(field.type)) for field in kind])
    return kind


def _has_decimals(kind: pa.DataType) -> bool:
    """At any depth."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind)) or any(map(_has_decimals, inner))


def _are_braced(text: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")), min_count=0).as_py())


def _any(flags: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())
