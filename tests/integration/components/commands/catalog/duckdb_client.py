"""DuckDB with the catalog attached as `lake`."""

from __future__ import annotations

import duckdb

from tests.e2e.engines import load_extensions


def attach(url: str, options: str = "") -> duckdb.DuckDBPyConnection:
    """`options`: more options of ATTACH. The caller closes the connection."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load_extensions(connection, "httpfs", "avro", "iceberg")
    connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none'{options})")
    return connection
