"""Data frames of other libraries, as Arrow has them. None of them is imported: who passes one has it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class Frame(Protocol):
    """Of pandas, Polars, DuckDB and others: Arrow's own protocol for tables."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def from_frame(data: Frame) -> pa.Table:
    """Of pandas, NaN is null, and an index is a column only if it has a name."""
    index: Any = getattr(data, "index", None)
    if type(data).__module__.partition(".")[0] == "pandas" and index is not None:
        return pa.Table.from_pandas(data, preserve_index=any(name is not None for name in index.names))
    return pa.table(data)
