"""`Scan`: the rows of an Iceberg table, read when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.table import DataScan

if TYPE_CHECKING:
    import duckdb
    import pandas


class Scan:
    """Rows as of the moment of the scan. Each method reads the files again; all of them block."""

    def __init__(self, scan: DataScan) -> None:
        self._scan = scan

    def to_arrow(self) -> pa.Table:
        return self._scan.to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """Needs pandas."""
        return self._scan.to_arrow().to_pandas()

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Returns a relation of the connection, or of one of its own. Needs DuckDB."""
        import duckdb

        return (connection or duckdb.connect()).from_arrow(self._scan.to_arrow())
