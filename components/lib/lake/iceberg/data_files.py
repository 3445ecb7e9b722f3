"""Builds a manifest's `DataFile` from a registry row and its statistics, without opening the file."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Mapping
from os import SEEK_END

import msgspec
import structlog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from components.lib.lake.files.footers import BadFooter, ending_length, read_statistics
from components.lib.lake.iceberg.errors import BadFile, CatalogUnavailable
from components.lib.lake.isolation import ChildNotStarted
from components.lib.lake.partitioning.partition_values import Partitioning
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import ColumnStats, TableFile

log = structlog.get_logger(__name__)

_TAIL = 64 * 1024
"""Bytes read first; most footers are smaller."""

_statistics = msgspec.json.Decoder(dict[int, ColumnStats])


class DataFiles:
    """For one schema version. Keep the object: it caches partitions."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._partitioning = Partitioning(schema)
        self._partitions: dict[str, Record] = {}

    def partition(self, path: str) -> Record:
        """Raises `PartitionProblem` if the path is not valid for this schema version."""
        found = self._partitions.get(path)
        if found is None:
            if len(self._partitions) >= 10_000:
                self._partitions.clear()
            found = self._partitions[path] = self._partitioning.values(path)
        return found

    def make(self, file: TableFile, spec_id: int, io: FileIO) -> DataFile:
        """Reads the file's footer if its row has no statistics. Raises `BadFile` if that fails too."""
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
    """Reads in a child process: a file without statistics was not written by Astha."""
    try:
        found = read_statistics(_ending(file, io), schema.iceberg)
    except BadFooter as error:
        raise BadFile(
            f"{file.file_path} has no statistics in the registry, and its footer has none: {error}. Remove the "
            "file from the table, or register it again with statistics"
        ) from error
    except ChildNotStarted as error:
        raise CatalogUnavailable(f"{file.file_path}: {error}") from error
    log.info("statistics read from a file's footer", file=file.file_path)
    if found.record_count != file.row_count:
        raise BadFile(f"{file.file_path} is registered with {file.row_count} rows, but has {found.record_count}")
    kept = msgspec.structs.asdict(found)
    del kept["record_count"]
    return kept


def _ending(file: TableFile, io: FileIO) -> bytes:
    """Returns the file's end, from its footer on. Raises OSError for the storage, `BadFile` for the file."""
    try:
        with io.new_input(file.file_path).open() as stream:
            size = stream.seek(0, SEEK_END)
            stream.seek(max(0, size - _TAIL))
            tail = stream.read(_TAIL)
            needed = ending_length(tail)
            if _TAIL < needed <= size:
                stream.seek(size - needed)
                tail = stream.read(needed)
    except FileNotFoundError as error:
        raise BadFile(f"{file.file_path} is registered, but missing: remove it from the table") from error
    return tail
