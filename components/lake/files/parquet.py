"""Parquet, by Arrow: field ids in the schema, so that Iceberg takes the files as they are."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.lake.files.contract import WrittenFile
from components.lake.files.order import sort, sorting_columns
from components.lake.files.statistics import leaves, parquet_statistics
from components.lake.schema import SchemaProblem, TableSchema, said
from components.lake.sinks import Tally, Writable

_UNCOMPRESSED = ("none", "uncompressed")
_LEVELS = {"zstd": 3, "gzip": 6}  # Arrow's own default for zstd is 1


class ParquetOptions(BaseModel):
    """`engine_config` of a table in this format, and its compression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compression: Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none", "uncompressed"] = "zstd"
    compression_level: int | None = Field(None, description="Of zstd, gzip or brotli.")
    row_group_rows: int = Field(1 << 20, gt=0, description="Rows in a row group.")


class ParquetEngine:
    file_type = "parquet"
    extension = ".parquet"

    def __init__(self, options: ParquetOptions | None = None) -> None:
        self._options = options or ParquetOptions()

    @classmethod
    def of(cls, compression: str, config: dict[str, Any]) -> ParquetEngine:
        try:
            return cls(ParquetOptions(**{"compression": compression.lower(), **config}))
        except ValidationError as error:
            raise SchemaProblem(f"engine_config or compression of a Parquet table: {said(error)}") from error

    @property
    def compressed(self) -> bool:
        return self._options.compression not in _UNCOMPRESSED

    def write(self, table: pa.Table, schema: TableSchema, sink: Writable) -> WrittenFile:
        options = self._options
        tally = Tally(sink)
        rows = sort(table, schema)
        footers: list[pq.FileMetaData] = []
        level = options.compression_level or _LEVELS.get(options.compression)
        writer = pq.ParquetWriter(
            tally,
            schema.arrow(),
            compression=options.compression if self.compressed else "none",
            compression_level=level if self.compressed else None,
            store_decimal_as_integer=True,  # as Iceberg's specification has small decimals
            sorting_columns=[pq.SortingColumn(*column) for column in sorting_columns(schema)] or None,
            metadata_collector=footers,
        )
        try:
            writer.write_table(rows, row_group_size=options.row_group_rows)
            writer.close()
        except BaseException:
            tally.ignore_the_rest()  # a writer closes itself, at the latest when it is collected
            writer.close()
            raise
        return WrittenFile(
            tally.size, rows.num_rows, tally.checksum, parquet_statistics(footers[0], rows, leaves(schema))
        )
