"""Data frames of other libraries, converted to Arrow without importing those libraries."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class Frame(Protocol):
    """Arrow's protocol for tables, which pandas, Polars, DuckDB and others implement."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def from_frame(data: Frame) -> pa.Table:
    """In a pandas frame, NaN becomes null, and the index becomes a column only if it has a name.

    Raises TypeError for a series, which has no names of columns.
    """
    if type(data).__name__ == "Series":
        raise TypeError("rows are a data frame, not a Series: give series.to_frame()")
    index: Any = getattr(data, "index", None)
    if type(data).__module__.partition(".")[0] == "pandas" and index is not None:
        return pa.Table.from_pandas(data, preserve_index=any(name is not None for name in index.names))
    return pa.table(data)
