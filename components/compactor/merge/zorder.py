"""Z-order: keeps rows together that are close in several columns.

The values of each column in `sort_by` are divided into about equally filled buckets. Rows are ordered by the bits of
their bucket numbers, taken from each column in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.lib.lake.files.sorting import Key, field_keys
from components.lib.lake.schema.table_schema import TableSchema

_SAMPLE = 1 << 16  # values that determine the buckets of a column; more would not improve them
_MOST_BITS = 16


def z_order(table: pa.Table, schema: TableSchema) -> npt.NDArray[np.int64]:
    """Returns the row number for each place of the new order."""
    fields = schema.order.fields
    bits = min(_MOST_BITS, 64 // len(fields))
    place = np.zeros(table.num_rows, np.uint64)
    for number, field in enumerate(fields):
        bucket = _buckets(field_keys(table, schema, field), table.num_rows, bits)
        for bit in range(bits):
            taken = (bucket >> np.uint64(bit)) & np.uint64(1)
            place |= taken << np.uint64(bit * len(fields) + len(fields) - 1 - number)
    return np.argsort(place, kind="stable")


def _buckets(keys: list[Key], rows: int, bits: int) -> npt.NDArray[np.uint64]:
    """Returns bucket numbers from the keys of one column. Nulls have a bucket at the end where the order puts them."""
    found = np.zeros(rows, np.uint64)
    for key in keys:  # the first key of a column with nulls separates them, and is the more significant
        if key.dtype == np.bool_ and key is not keys[-1]:
            found += key * np.uint64(1 << (bits - 1))
        else:
            found += _cut(key, bits - (len(keys) - 1))
    return found


def _cut(values: Key, bits: int) -> npt.NDArray[np.uint64]:
    sample: npt.NDArray[Any] = np.sort(values[:: max(1, len(values) // _SAMPLE)])
    bounds = np.unique(sample[:: -(-len(sample) // ((1 << bits) - 1))])
    return np.searchsorted(bounds[1:], values, side="right").astype(np.uint64)
