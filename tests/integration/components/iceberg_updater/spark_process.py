"""Spark with Iceberg's own runtime, in a process of its own: a JSON question a line on stdin, an answer on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.jars import Jar, fetch

_RUNTIME = Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0", transitive=False)
_DRIVERS = (
    Jar("org.xerial", "sqlite-jdbc", "3.49.1.0", transitive=False),
    Jar("org.postgresql", "postgresql", "42.7.7", transitive=False),
)


class Spark:
    """`catalog` are the properties of Spark's catalog `astha`."""

    def __init__(self, directory: Path, catalog: dict[str, str]) -> None:
        jars = [*fetch("iceberg-spark", _RUNTIME).glob("*.jar"), *fetch("jdbc-drivers", *_DRIVERS).glob("*.jar")]
        order = {"jars": ",".join(map(str, jars)), "catalog": catalog, "directory": str(directory)}
        with (directory / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(order)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def sql(self, statement: str) -> list[list[Any]]:
        answer: list[list[Any]] = self._ask(sql=statement)
        return answer

    def stream(self, table: str) -> list[int]:
        """Ids that a stream over the table has brought since the last time."""
        answer: list[int] = self._ask(stream=table)
        return answer

    def _ask(self, **question: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "Spark has ended"}')
        assert "error" not in answer, answer["error"]
        return answer["answer"]


def main() -> None:
    order = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the JVM's own words are not answers
    session = _session(order)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "sql" in question:
                answer: Any = [list(row) for row in session.sql(question["sql"]).collect()]
            else:
                answer = _stream(session, question["stream"], Path(order["directory"]))
            print(json.dumps({"answer": answer}, default=str), file=out, flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)[:2_000]}), file=out, flush=True)
    session.stop()


def _session(order: dict[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", order["jars"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.catalog.astha", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.astha.cache-enabled", "false")
    )
    for name, value in order["catalog"].items():
        builder = builder.config(f"spark.sql.catalog.astha.{name}", value)
    return builder.getOrCreate()


def _stream(session: Any, table: str, directory: Path) -> list[int]:
    found: list[int] = []

    def keep(batch: Any, _number: int) -> None:
        found.extend(row["id"] for row in batch.select("id").collect())

    query = (
        session.readStream.format("iceberg")
        .load(table)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(found)


if __name__ == "__main__":
    main()
