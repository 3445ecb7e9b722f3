"""Spark SQL with Iceberg's runtime, in a process of its own.

Reads statements from stdin, one JSON string per line, and prints the rows of each, or its error, as one line of JSON.
The first line that it prints has no rows: the session is ready.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"

_CATALOG = "spark.sql.catalog.lake"
_LOOPBACK = "127.0.0.1"


class Line(msgspec.Struct):
    rows: list[list[Any]] = []
    error: str | None = None


def open_session(uri: str) -> Any:
    """Returns a session with the catalog `lake`. Spark fetches the runtime from Maven, once per user."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars.packages": RUNTIME,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        _CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{_CATALOG}.type": "rest",
        f"{_CATALOG}.uri": uri,
        f"{_CATALOG}.cache-enabled": "false",  # a loaded table would stay as it is for 30 s
        "spark.ui.enabled": "false",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[1]").appName("astha demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # keeps the JVM's output apart from the lines
    session = open_session(sys.argv[1])
    lines.write(msgspec.json.encode(Line()) + b"\n")
    for text in sys.stdin.buffer:
        try:
            found = session.sql(msgspec.json.decode(text, type=str)).collect()
            line = Line([list(row) for row in found])
        except Exception as error:
            line = Line(error=str(error)[:2_000])
        lines.write(msgspec.json.encode(line) + b"\n")
    session.stop()


if __name__ == "__main__":
    main()
