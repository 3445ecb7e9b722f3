"""Spark SQL and DuckDB write one table through the catalog."""

from __future__ import annotations

from deploy.demo.claims import prints
from deploy.demo.machine import no_spark
from deploy.demo.story import Addresses, Chapter, Step

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"


def chapter(addresses: Addresses) -> Chapter:
    return Chapter(
        "engines",
        "Spark SQL and DuckDB write one table",
        "A commit of any engine is one transaction of the registry, and an event like any other.",
        (
            Step(
                f"""\
python - <<'END'
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars.packages", "{RUNTIME}")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "rest")
    .config("spark.sql.catalog.lake.uri", "{addresses.catalog_url}")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
spark.sql("CREATE TABLE lake.shop.prices AS SELECT id, CAST(id % 100 AS DOUBLE) AS price FROM range(4000)")
spark.sql('''
    MERGE INTO lake.shop.prices AS t USING (SELECT id, 0.0D AS price FROM range(3900, 4100)) AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET price = s.price WHEN NOT MATCHED THEN INSERT *
''')
spark.sql("SELECT count(*) AS rows, min(id), max(id) FROM lake.shop.prices").show()
END""",
                (prints("4100", "Spark SQL has created, filled and merged the table."),),
                limit_s=400,
                unavailable="unresolved dependency",
            ),
            Step(
                f"""\
python - <<'END'
import duckdb

lake = duckdb.connect()
lake.execute("LOAD iceberg")
lake.execute("ATTACH 'lake' (TYPE iceberg, ENDPOINT '{addresses.catalog_url}', AUTHORIZATION_TYPE 'none')")
lake.execute("INSERT INTO lake.shop.prices SELECT i, 1.5 FROM range(5000, 5500) AS r(i)")
lake.sql("SELECT count(*) AS rows FROM lake.shop.prices").show()
END""",
                (prints("4600", "DuckDB has added 500 rows, and reads those of Spark."),),
            ),
            Step(
                "astha verify shop.prices",
                (prints("equal: 1 table"), prints("4,600 rows", "The registry has the rows of both engines.")),
            ),
        ),
        no_spark,
    )
