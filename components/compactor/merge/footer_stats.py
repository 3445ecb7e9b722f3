"""What the footers of a group's files say about its columns: their size in memory, and whether values repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.types import BinaryType, StringType

from components.compactor.merge.footer import UNCOMPRESSED, VALUES, Footer, path_of
from components.lib.lake.files.parquet import ColumnHints
from components.lib.lake.files.statistics import Leaf, leaves
from components.lib.lake.schema.table_schema import TableSchema

_FEW = 0.5  # of its plain size: text below this has few distinct values, and is read as a dictionary
_WITHOUT_SIZES = 4  # times the encoded size: a guess for text if the writer does not record sizes
_OVERHEAD = 1.15  # validity bitmaps, and rounding by the allocator
_UNKNOWN = -1


@dataclass
class _Column:
    encoded: int = 0
    plain: int = 0
    values: int = 0


@dataclass(frozen=True)
class FooterStats:
    hints: ColumnHints
    decoded_bytes: int
    """Estimated size of all rows in Arrow."""
    largest_bytes: int
    """Estimated size of the largest column."""

    @classmethod
    def of(cls, footers: Iterable[tuple[Footer, TableSchema]], current: TableSchema) -> FooterStats:
        """``footers`` come with the schema version of their file."""
        found = _totals(footers)
        typed, encoded, value_bytes = [], [], 1
        sizes = [found[_UNKNOWN].plain] if _UNKNOWN in found else []
        for leaf in leaves(current):
            column = found.get(leaf.field_id)
            if column is None:
                continue
            as_dictionary = _is_text(leaf) and len(leaf.steps) == 1 and column.encoded < column.plain * _FEW
            if as_dictionary:
                typed.append(leaf.steps[0])
            if column.encoded < column.plain:
                encoded.append(leaf.path)
            size = int(_OVERHEAD * (column.encoded + 4 * column.values if as_dictionary else _size(leaf, column)))
            sizes.append(size)
            value_bytes = max(value_bytes, size // max(1, column.values))
        return cls(ColumnHints(frozenset(typed), encoded, value_bytes=value_bytes), sum(sizes), max(sizes, default=0))


def _size(leaf: Leaf, column: _Column) -> int:
    return column.plain + (4 * column.values if _is_text(leaf) else 0)  # Arrow has eight bytes per offset


def _is_text(leaf: Leaf) -> bool:
    return isinstance(leaf.kind, StringType | BinaryType)


def _totals(footers: Iterable[tuple[Footer, TableSchema]]) -> dict[int, _Column]:
    """Returns totals by field id of the leaf."""
    found: dict[int, _Column] = defaultdict(_Column)
    by_version: dict[int, dict[str, int]] = {}
    names: dict[bytes, str] = {}
    for footer, version in footers:
        ids = by_version.get(version.version)
        if ids is None:
            ids = by_version[version.version] = {leaf.path: leaf.field_id for leaf in leaves(version)}
        for chunk in footer.chunks():
            name = names.get(chunk.path)
            if name is None:
                name = names[chunk.path] = path_of(chunk.path)  # "" if it is invalid
            column = found[ids.get(name, _UNKNOWN)]
            encoded, plain = chunk.number(UNCOMPRESSED), chunk.plain_bytes
            column.encoded += encoded
            column.plain += encoded * _WITHOUT_SIZES if plain is None else plain
            column.values += chunk.number(VALUES)
    return found
