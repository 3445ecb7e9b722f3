"""A file of the registry as Iceberg's manifests know it: made from what is kept with its row, without opening it."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from os import SEEK_END

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from components.lake.iceberg.errors import BadFile
from components.lake.partitions import Partitioning
from components.lake.schema import TableSchema
from registry.models import ColumnStats, TableFile

log = structlog.get_logger(__name__)

_MAGIC = b"PAR1"
_TAIL = 64 * 1024
"""Read at once; most footers are smaller."""

_statistics = msgspec.json.Decoder(dict[int, ColumnStats])


class DataFiles:
    """Of one schema version; keep it for as long as that version is written to."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._partitioning = Partitioning(schema)
        self._partitions: dict[str, Record] = {}

    def partition(self, path: str) -> Record:
        """PartitionProblem if it is not one of this schema version."""
        found = self._partitions.get(path)
        if found is None:
            if len(self._partitions) >= 10_000:
                self._partitions.clear()
            found = self._partitions[path] = self._partitioning.values(path)
        return found

    def make(self, file: TableFile, spec_id: int, io: FileIO) -> DataFile:
        """From the file's footer if nobody has kept its statistics. BadFile if that can't be read either."""
        if file.column_stats is None:
            kept = _read_footer(file, self.schema, io)
        else:
            try:
                kept = _columns(_statistics.decode(str(file.column_stats)))
            except (msgspec.DecodeError, ValueError) as error:
                raise BadFile(f"{file.file_path}: its column statistics can't be read: {error}") from error
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.file_path,
            file_format=FileFormat.PARQUET,
            partition=self.partition(file.partition_path),
            record_count=file.row_count,
            file_size_in_bytes=file.file_size,
            **kept,  # type: ignore[arg-type]  # columns of a manifest, none of them the version
        )
        made.spec_id = spec_id  # from_args does not take it
        return made


def _columns(columns: Mapping[int, ColumnStats]) -> dict[str, object]:
    return {
        "column_sizes": {key: column.size_bytes for key, column in columns.items() if column.size_bytes is not None},
        "value_counts": {key: column.value_count for key, column in columns.items()},
        "null_value_counts": {key: column.null_count for key, column in columns.items()},
        "nan_value_counts": {key: column.nan_count for key, column in columns.items() if column.nan_count is not None},
        "lower_bounds": {key: a2b_base64(column.lower) for key, column in columns.items() if column.lower is not None},
        "upper_bounds": {key: a2b_base64(column.upper) for key, column in columns.items() if column.upper is not None},
    }


def _read_footer(file: TableFile, schema: TableSchema, io: FileIO) -> dict[str, object]:
    content = _footer_bytes(file, io)
    try:
        footer = pq.read_metadata(pa.BufferReader(content))
        _require_field_ids(file, footer)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema.iceberg, {}),
            parquet_column_mapping=parquet_path_to_id_mapping(schema.iceberg),
        )
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise BadFile(
            f"{file.file_path} has no statistics in the registry, and its footer does not say: {error}. Remove the "
            "file from the table, or register it again with statistics"
        ) from error
    log.info("statistics read from a file's footer", file=file.file_path, registered_with="none")
    found = statistics.to_serialized_dict()
    if found.pop("record_count") != file.row_count:
        raise BadFile(f"{file.file_path} is registered with {file.row_count} rows, and has {footer.num_rows}")
    return found


def _footer_bytes(file: TableFile, io: FileIO) -> bytes:
    """A file of nothing but the footer. OSError is the storage's trouble, BadFile the file's."""
    try:
        with io.new_input(file.file_path).open() as stream:
            size = stream.seek(0, SEEK_END)
            stream.seek(max(0, size - _TAIL))
            tail = stream.read(_TAIL)
            needed = int.from_bytes(tail[-8:-4], "little") + 8
            if _TAIL < needed <= size:
                stream.seek(size - needed)
                tail = stream.read(needed)
    except FileNotFoundError as error:
        raise BadFile(f"{file.file_path} is registered, and not there: remove it from the table") from error
    return _MAGIC + tail[-needed:]


def _require_field_ids(file: TableFile, footer: pq.FileMetaData) -> None:
    arrow = footer.schema.to_arrow_schema()
    without = [field.name for field in arrow if not (field.metadata or {}).get(b"PARQUET:field_id")]
    if without:
        raise BadFile(
            f"{file.file_path}: column {without[0]} has no field id, so that engines could take it for another: "
            "insert the file with `astha insert`, which writes them"
        )
