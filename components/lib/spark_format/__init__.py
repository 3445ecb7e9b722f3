"""The Spark format ``astha``: topics to read, tables to insert into. One name for both, so one package above both.

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
        return TopicScan.of(self.options).schema

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(TopicScan.of(self.options), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802  (Spark's name)
        return TopicStreamReader(TopicScan.of(self.options), schema)


def register(spark: SparkSession) -> None:
    """Teach the session the format ``astha``, and to tell it of filters, for which Spark 4.1 wants to be asked."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(AsthaFormat)
