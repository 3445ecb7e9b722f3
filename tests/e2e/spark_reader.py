"""Reads Iceberg tables with Spark, one a line: `python -m tests.e2e.spark_reader SETTINGS`, all of it JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
}


def main(given: dict[str, str]) -> None:
    builder = SparkSession.builder.master("local[2]").appName("astha-e2e")
    for name, value in {**SETTINGS, **given}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        location, number, amount = json.loads(line)
        frame = spark.read.format("iceberg").load(location).select(number, amount)
        print(json.dumps([list(row) for row in frame.collect()]), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
