"""The Spark format ``astha``: reads topics and inserts into tables. It joins two libraries under one format name.

from components.lib.spark_format import register

register(spark)
spark.read.format("astha").option("topic", "orders").load()
df.write.format("astha").option("table", "shop.orders").mode("append").save()
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from components.lib.storage_manager.spark import AsthaDataSource
from components.lib.streams.spark_source import TopicReader, TopicScan, TopicStreamReader

__all__ = ["AsthaFormat", "register"]


class AsthaFormat(AsthaDataSource):
    def schema(self) -> str:
        return TopicScan.from_options(self.options).schema

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(TopicScan.from_options(self.options), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802  (Spark's name)
        return TopicStreamReader(TopicScan.from_options(self.options), schema)


def register(spark: SparkSession) -> None:
    """Registers the format ``astha`` with the session, and enables filter pushdown, which Spark 4.1 leaves off by
    default.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(AsthaFormat)
