"""Reads an Iceberg table with three independent engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb
from fsspec import AbstractFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import S3FileSystem
from pyiceberg.table import Table

from astha.subscribers.context import S3Settings
from tests.servers.jars import Jar, fetch

RUNTIME = Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0", transitive=False)
S3_JARS = (
    Jar("org.apache.hadoop", "hadoop-aws", "3.4.2", transitive=False),
    *(Jar("software.amazon.awssdk", name, "2.29.52") for name in ("s3", "s3-transfer-manager", "sts")),
)
"""What PySpark's Hadoop needs for S3. The complete SDK bundle is thirty times as large."""

ID, AMOUNT = 1, 3

Rows = list[tuple[int, int]]


def columns_of(table: Table) -> tuple[str, str]:
    """Returns the current names of the two columns."""
    return table.schema().find_field(ID).name, table.schema().find_field(AMOUNT).name


def read_with_pyiceberg(table: Table) -> Rows:
    number, amount = columns_of(table)
    found = table.scan(selected_fields=(number, amount)).to_arrow()
    return sorted(zip(found[number].to_pylist(), found[amount].to_pylist(), strict=True))


def read_with_duckdb(table: Table, files: AbstractFileSystem | None = None) -> Rows:
    """`files`: the file system, if not the local disk."""
    number, amount = columns_of(table)
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        if files is not None:
            connection.register_filesystem(files)
        load_extensions(connection, "avro", "iceberg")
        query = f'SELECT "{number}", "{amount}" FROM iceberg_scan(?)'
        return sorted(connection.execute(query, [table.metadata_location.removeprefix("file://")]).fetchall())


def load_extensions(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Loads extensions from their packages: DuckDB itself would download them."""
    for name in names:
        connection.execute(f"LOAD '{_extension(name)}'")


def s3_files(s3: S3Settings) -> AbstractFileSystem:
    """For DuckDB: its S3 extension is in no package."""
    assert s3.endpoint is not None
    assert s3.access_key is not None
    assert s3.secret_key is not None
    return ArrowFSWrapper(
        S3FileSystem(
            access_key=s3.access_key.get_secret_value(),
            secret_key=s3.secret_key.get_secret_value(),
            endpoint_override=s3.endpoint,
            region=s3.region,
        )
    )


def s3_settings(s3: S3Settings) -> dict[str, str]:
    """For Spark."""
    assert s3.endpoint is not None
    assert s3.access_key is not None
    assert s3.secret_key is not None
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": s3.region,
        "spark.hadoop.fs.s3a.access.key": s3.access_key.get_secret_value(),
        "spark.hadoop.fs.s3a.secret.key": s3.secret_key.get_secret_value(),
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


def _extension(name: str) -> Path:
    module = __import__(f"duckdb_extension_{name}")
    return next(Path(str(module.__file__)).parent.rglob(f"{name}.duckdb_extension"))


class Spark:
    """Spark with Iceberg's runtime, in a separate process, so that its open files are not the test's."""

    def __init__(self, scratch: Path, settings: Mapping[str, str] | None = None, *jars: Jar) -> None:
        libraries = [fetch("iceberg-spark-runtime", RUNTIME), *([fetch("spark-s3", *jars)] if jars else [])]
        paths = [str(path) for library in libraries for path in sorted(library.glob("*.jar"))]
        given = {"spark.jars": ",".join(paths), "spark.sql.warehouse.dir": str(scratch / "spark"), **(settings or {})}
        self._log = (scratch / "spark.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.spark_reader", json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip

    def read(self, table: Table) -> Rows:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([table.metadata_location, *columns_of(table)]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise AssertionError(f"Spark is gone: {self._log.read()[-5_000:]}")
        return sorted((number, amount) for number, amount in json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
