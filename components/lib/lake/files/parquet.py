"""Parquet files, written by Arrow with field ids in the schema, so that Iceberg reads them as they are."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.lib.lake.files.sorting import sort, sorting_columns
from components.lib.lake.files.statistics import count_nan, leaves, parquet_statistics
from components.lib.lake.files.writer_protocol import WrittenFile
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema, validation_message
from components.lib.lake.storage.output_streams import ChecksummedSink, Writable

_UNCOMPRESSED = ("none", "uncompressed")
_LEAST_BATCH_ROWS = 1_024  # Arrow's default
_BATCH_ROWS = 8_192  # gives the same bytes, an eighth sooner
_BATCH_BYTES = 1 << 20
_LEVELS = {"zstd": 3, "gzip": 6}  # Arrow's own default for zstd is 1


class ParquetOptions(BaseModel):
    """`engine_config` and compression of a table in this format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compression: Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none", "uncompressed"] = "zstd"
    compression_level: int | None = Field(None, description="Compression level, for zstd, gzip and brotli.")
    row_group_rows: int = Field(1 << 20, gt=0, description="Rows per row group.")


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
            raise SchemaProblem(
                f"engine_config or compression of a Parquet table: {validation_message(error)}"
            ) from error

    @property
    def compressed(self) -> bool:
        return self._options.compression not in _UNCOMPRESSED

    def write(self, table: pa.Table, schema: TableSchema, sink: Writable) -> WrittenFile:
        widest = max((column.nbytes for column in table.columns), default=0)
        hints = ColumnHints(value_bytes=-(-widest // max(1, table.num_rows)))
        with self.open(schema, sink, hints) as writer:
            writer.write(sort(table, schema))
        return writer.written

    def open(self, schema: TableSchema, sink: Writable, hints: ColumnHints | None = None) -> ParquetWriter:
        """Opens a writer for rows that arrive in their final order, some at a time."""
        return ParquetWriter(self._options, schema, sink, hints or ColumnHints())

    @property
    def row_group_rows(self) -> int:
        return self._options.row_group_rows

    @property
    def codec(self) -> str:
        """The codec's name in a file's footer."""
        name = self._options.compression.upper() if self.compressed else "UNCOMPRESSED"
        return "LZ4_RAW" if name == "LZ4" else name


@dataclass(frozen=True)
class ColumnHints:
    """What is known about the rows to be written. Saves work, and changes no value."""

    dictionary_typed: frozenset[str] = frozenset()
    """Top-level columns of text or bytes that arrive as Arrow dictionaries."""

    dictionary_encoded: Sequence[str] | None = None
    """Parquet paths of columns with repeating values; None to try dictionaries for all columns."""

    in_order: bool = True
    """Whether the rows arrive in the table's sort order, which the footer then declares."""

    value_bytes: int | None = None
    """Mean size of the values of the widest column."""

    @property
    def batch_rows(self) -> int:
        """Returns how many rows are encoded at a time: fewer if the values are large, because a page ends only with a
        batch.
        """
        if self.value_bytes is None:
            return _LEAST_BATCH_ROWS
        return min(_BATCH_ROWS, max(_LEAST_BATCH_ROWS, _BATCH_BYTES // max(1, self.value_bytes)))


class ParquetWriter:
    """Writes one file. A context manager: leaving it completes the file and sets `written`, or abandons it after an
    error.
    """

    written: WrittenFile

    def __init__(self, options: ParquetOptions, schema: TableSchema, sink: Writable, hints: ColumnHints) -> None:
        self._options = options
        self._leaves = leaves(schema)
        self._nans = {leaf.field_id: 0 for leaf in self._leaves if leaf.floating}
        self.rows = 0
        self._output = ChecksummedSink(sink)
        self._footers: list[pq.FileMetaData] = []
        compressed = options.compression not in _UNCOMPRESSED
        level = options.compression_level or _LEVELS.get(options.compression)
        order = sorting_columns(schema) if hints.in_order else []
        self._writer = pq.ParquetWriter(
            self._output,
            _with_dictionaries(schema.arrow(), hints.dictionary_typed),
            compression=options.compression if compressed else "none",
            compression_level=level if compressed else None,
            use_dictionary=True if hints.dictionary_encoded is None else list(hints.dictionary_encoded),
            store_decimal_as_integer=True,  # as Iceberg specifies for small decimals
            store_schema=not hints.dictionary_typed,
            sorting_columns=[pq.SortingColumn(*column) for column in order] or None,
            metadata_collector=self._footers,
            write_batch_size=hints.batch_rows,
        )
        if hints.dictionary_typed:  # the declared schema does not depend on how rows arrived
            self._writer.add_key_value_metadata({"ARROW:schema": b64encode(schema.arrow().serialize()).decode()})

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._finish()
        else:
            self._abandon()

    @property
    def size(self) -> int:
        """The size of the row groups so far."""
        return self._output.size

    def write(self, rows: pa.Table) -> None:
        """Writes whole row groups: only the last call of a file should have fewer rows than a row group."""
        self._writer.write_table(rows, row_group_size=self._options.row_group_rows)
        self.rows += rows.num_rows
        for leaf in self._leaves:
            if leaf.floating:
                self._nans[leaf.field_id] += count_nan(rows, leaf)

    def _abandon(self) -> None:
        self._output.discard_the_rest()
        with suppress(Exception):  # the first error is the one to raise
            self._writer.close()
        self._writer.is_open = False  # otherwise it is closed again by the garbage collector, and fails there

    def _finish(self) -> None:
        try:
            self._writer.close()
        except BaseException:
            self._abandon()
            raise
        found = parquet_statistics(self._footers[0], self._leaves, self._nans)
        self.written = WrittenFile(self._output.size, self.rows, self._output.checksum, found)


def _with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    for name in names:
        place = schema.get_field_index(name)
        field = schema.field(place)
        values = pa.binary() if pa.types.is_large_binary(field.type) else pa.string()  # the types that Arrow reads
        schema = schema.set(place, field.with_type(pa.dictionary(pa.int32(), values)))
    return schema
