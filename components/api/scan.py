"""`Scan`: the rows of an Iceberg table, read when they are asked for."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.table import DataScan

from astha.errors import ConfigError

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


class Scan:
    """Rows as of the moment of the scan. Each method reads the files again; all of them block.

    The libraries of the last three are not dependencies of Astha: ConfigError says which one to install.
    """

    def __init__(self, scan: DataScan) -> None:
        self._scan = scan

    def to_arrow(self) -> pa.Table:
        """Returns all rows in memory.

        >>> scan.to_arrow().column_names
        ['id', 'left']
        """
        return self._scan.to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """Needs pandas. A column of integers with nulls becomes one of doubles, as is usual there; `insert` takes it
        back.

        >>> frame = scan.to_pandas().sort_values("id")
        >>> frame["left"].tolist()
        [5.0, nan]
        """
        _library("pandas")
        return self._scan.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Needs Polars.

        >>> scan.to_polars().sort("id")["left"].to_list()
        [5, None]
        """
        frame: polars.DataFrame = _library("polars").from_arrow(self._scan.to_arrow())
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Returns a relation of the connection, or of one of its own. Needs DuckDB.

        >>> scan.to_duckdb().aggregate("count(*), sum(id)").fetchone()
        (2, 3)
        """
        found = connection or _library("duckdb").connect()
        return found.from_arrow(self._scan.to_arrow())


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(f"to_{name} needs {name}, which is not installed: pip install {name}") from error
