"""Column statistics of a new file, from the footer that its writer has just made; nothing is read again.

Bounds are in Iceberg's single-value form. Text and bytes are truncated to 16 characters, the upper bound rounded up, as
Iceberg's own writers do. There are no bounds inside lists and maps, and none where Arrow has none (values over 4 KB).
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from components.lib.lake.files.arrow_nested import inside
from components.lib.lake.schema.table_schema import TableSchema
from registry.json_text import JsonText, to_json_text
from registry.models import ColumnStats

Bound: TypeAlias = Callable[[Any], bytes | None]

WIDTH = 16
"""Length of a truncated bound, in characters or bytes."""

_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)  # not characters


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column. ``steps`` are the names from its top-level column to it."""

    field_id: int
    kind: IcebergType
    steps: tuple[str, ...]
    repeated: bool
    path: str  # in Parquet

    @property
    def floating(self) -> bool:
        return isinstance(self.kind, FloatType | DoubleType)


def leaves(schema: TableSchema) -> list[Leaf]:
    """Returns the leaf columns in the order of a Parquet file's columns."""
    return [leaf for field in schema.iceberg.fields for leaf in _leaves(field, (), repeated=False)]


def parquet_statistics(footer: pq.FileMetaData, columns: list[Leaf], nans: Mapping[int, int]) -> JsonText:
    """``nans`` are the NaN counts by field id of every float leaf, which a footer does not contain."""
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    found: dict[str, ColumnStats] = {}
    for place, leaf in enumerate(columns):
        values = nulls = size = 0
        lower: Any = None
        upper: Any = None
        bounded = not leaf.repeated
        for group in groups:
            chunk = group.column(place)
            values += chunk.num_values
            size += chunk.total_compressed_size
            statistics = chunk.statistics
            nulls += statistics.null_count
            if not bounded:
                continue
            if statistics.has_min_max:
                least, most = statistics.min_raw, statistics.max_raw
                lower = least if lower is None or _order(leaf, least) < _order(leaf, lower) else lower
                upper = most if upper is None or _order(leaf, most) > _order(leaf, upper) else upper
            elif statistics.num_values:
                bounded = leaf.floating  # all values are NaN, or one is too long for a bound
        found[str(leaf.field_id)] = ColumnStats(
            value_count=values,
            null_count=nulls,
            nan_count=nans[leaf.field_id] if leaf.floating else None,
            size_bytes=size,
            lower=_text(_lower(leaf.kind), lower) if bounded else None,
            upper=_text(_upper(leaf.kind), upper) if bounded else None,
        )
    return to_json_text(found)


def count_nan(table: pa.Table, leaf: Leaf) -> int:
    total = 0
    for chunk in table.column(leaf.steps[0]).chunks:
        for step in leaf.steps[1:]:
            chunk = inside(chunk, step)
        total += pc.sum(pc.is_nan(chunk)).as_py() or 0
    return total


def _leaves(field: NestedField, above: tuple[str, ...], path: str = "", *, repeated: bool) -> Iterator[Leaf]:
    steps = (*above, field.name)
    path += field.name
    match field.field_type:
        case StructType() as kind:
            for inner in kind.fields:
                yield from _leaves(inner, steps, f"{path}.", repeated=repeated)
        case ListType() as kind:
            yield from _leaves(kind.element_field, steps, f"{path}.list.", repeated=True)
        case MapType() as kind:
            yield from _leaves(kind.key_field, steps, f"{path}.key_value.", repeated=True)
            yield from _leaves(kind.value_field, steps, f"{path}.key_value.", repeated=True)
        case kind:
            yield Leaf(field.field_id, kind, steps, repeated, path)


def _order(leaf: Leaf, raw: Any) -> Any:
    """Returns the key by which bounds of row groups are compared."""
    if isinstance(leaf.kind, DecimalType) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _lower(kind: IcebergType) -> Bound:
    match kind:
        case StringType():
            return lambda raw: raw.decode()[:WIDTH].encode() if len(raw) > WIDTH else raw
        case BinaryType():
            return lambda raw: raw[:WIDTH]
        case _:
            return _exact(kind)


def _upper(kind: IcebergType) -> Bound:
    match kind:
        case StringType():
            return upper_text
        case BinaryType():
            return upper_bytes
        case _:
            return _exact(kind)


def _exact(kind: IcebergType) -> Bound:
    match kind:
        case BooleanType():
            return lambda raw: b"\x01" if raw else b"\x00"
        case IntegerType() | DateType():
            return struct.Struct("<i").pack
        case FloatType():
            return struct.Struct("<f").pack
        case DoubleType():
            return struct.Struct("<d").pack
        case DecimalType():
            return _decimal
        case _:  # long, time, timestamps; fixed and uuid are bytes already
            return lambda raw: raw if isinstance(raw, bytes) else struct.pack("<q", raw)


def upper_text(raw: bytes) -> bytes | None:
    """Returns the shortest text of at most 16 characters that is not below any text with this prefix, or None."""
    text = raw.decode()
    if len(text) <= WIDTH:
        return raw
    for end in range(WIDTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CHARACTER:
            return (text[: end - 1] + chr(following)).encode()
    return None


def upper_bytes(raw: bytes) -> bytes | None:
    if len(raw) <= WIDTH:
        return raw
    kept = raw[:WIDTH].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _decimal(raw: int | bytes) -> bytes:
    """Encodes the unscaled number in the fewest bytes, big-endian two's complement."""
    number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True)


def _text(bound: Bound, raw: Any) -> str | None:
    made = None if raw is None else bound(raw)
    return None if made is None else b64encode(made).decode()
