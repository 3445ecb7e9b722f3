"""Peers that merge the same files: plain PySpark, Iceberg's own procedure, PyArrow, DuckDB."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from astha.subscribers.context import LakeSettings
from benchmarks.compaction.data import PARTITIONS
from components.lib.lake.iceberg import IcebergTables, SnapshotChange, TableCommit, open_catalog
from components.lib.lake.schema.table_schema import TableSchema
from registry.inputs import FileDraft
from registry.migrate import migrate
from registry.models import LakeTable, TableFile
from tests.servers.jars import Jar, fetch


class Peer(Protocol):
    """Merges files by partition into a new directory, and removes it."""

    def __call__(self, files: Sequence[FileDraft], target: Path, *, ordered: bool) -> None: ...


_LEVEL = 3  # of zstd: the engine's default
_JARS = (
    Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0", transitive=False),
    Jar("org.xerial", "sqlite-jdbc", "3.49.1.0", transitive=False),
)


def plain_spark(spark: SparkSession, files: Sequence[FileDraft], target: Path, *, ordered: bool) -> None:
    """The obvious PySpark program, which knows nothing about the files."""
    frame = spark.read.parquet(*(file.file_path for file in files)).repartition(PARTITIONS, "region")
    if ordered:
        frame = frame.sortWithinPartitions("id")
    frame.write.option("compression", "zstd").parquet(str(target))
    shutil.rmtree(target)


def pyarrow_alone(files: Sequence[FileDraft], target: Path, *, ordered: bool) -> None:
    target.mkdir()
    for path, paths in _by_partition(files).items():
        table = pa.concat_tables(pq.read_table(name, partitioning=None) for name in paths)
        if ordered:
            table = table.sort_by("id")
        pq.write_table(table, target / f"{path}.parquet", compression="zstd", compression_level=_LEVEL)
    shutil.rmtree(target)


def duckdb_alone(files: Sequence[FileDraft], target: Path, *, ordered: bool) -> None:
    target.mkdir()
    with duckdb.connect(config={"threads": 2}) as connection:
        for path, paths in _by_partition(files).items():
            order = "ORDER BY id" if ordered else ""
            connection.execute(
                f"COPY (SELECT * FROM read_parquet({paths!r}, hive_partitioning=false) {order}) "
                f"TO '{target / path}.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {_LEVEL})"
            )
    shutil.rmtree(target)


class IcebergProcedure:
    """`rewrite_data_files` on an Iceberg table that Spark reaches through its own catalog."""

    NAME = "astha"
    """The catalog's name, which must be the same for Spark and PyIceberg."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._database = directory / "catalog.db"
        url = f"sqlite:///{self._database}"
        migrate(url)
        self._tables = IcebergTables(open_catalog(url, LakeSettings()), "bench")
        self._made = 0

    def spark_settings(self) -> dict[str, str]:
        """Returns the configuration of a session that can call the procedure."""
        jars = sorted(str(path) for path in fetch("compaction-benchmark", *_JARS).glob("*.jar"))
        catalog = f"spark.sql.catalog.{self.NAME}"
        return {
            "spark.jars": ",".join(jars),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{self._database}",
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.warehouse": str(self._directory),
            f"{catalog}.cache-enabled": "false",
        }

    def create(self, schema: TableSchema) -> LakeTable:
        self._made += 1
        location = (self._directory / f"t{self._made}").as_uri()
        table = LakeTable(self._made, "bench", f"t{self._made}", location, 0, 0, 0, 0, "active", 0, 0)
        self._tables.ensure(table, schema)
        return table

    def add(self, table: LakeTable, files: Sequence[FileDraft], schema: TableSchema) -> None:
        rows = [_as_row(file, table.id, number) for number, file in enumerate(files)]

        def build(draft: TableCommit) -> None:
            draft.add_snapshot(SnapshotChange(rows), {schema.version: schema})
            draft.set_stamp(None)

        self._tables.commit(table, build)

    def rewrite(self, spark: SparkSession, table: LakeTable, *, ordered: bool, target_bytes: int) -> int:
        """Returns the number of files that it removed."""
        strategy = "strategy => 'sort', sort_order => 'id ASC NULLS FIRST'" if ordered else "strategy => 'binpack'"
        options = {
            "rewrite-all": "true",
            "target-file-size-bytes": str(target_bytes),
            "max-concurrent-file-group-rewrites": "4",
        }
        given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
        row: Any = spark.sql(
            f"CALL {self.NAME}.system.rewrite_data_files(table => '{table.database}.{table.name}', {strategy}, "
            f"options => map({given}))"
        ).collect()[0]
        return int(row["rewritten_data_files_count"])

    def close(self) -> None:
        self._tables.close()


def _by_partition(files: Sequence[FileDraft]) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.partition_path, []).append(file.file_path.removeprefix("file://"))
    return paths


def _as_row(draft: FileDraft, table_id: int, number: int) -> TableFile:
    return TableFile(
        number, table_id, draft.file_name, draft.file_path, draft.file_size, draft.file_type, draft.partition_path,
        draft.row_count, draft.checksum, draft.is_compressed, draft.schema_version, draft.column_stats, "insert", None,
        0, 0,
    )  # fmt: skip
