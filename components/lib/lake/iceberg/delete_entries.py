"""Builds the manifest entry of a delete file from its registry row, for a table that Iceberg has lost."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from components.lib.lake.iceberg.errors import Unsupported
from components.lib.lake.iceberg.schema_updates import schema_of
from components.lib.lake.partitioning.partition_values import Partitioning, PartitionProblem
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import TableDeleteFile

_PATH_ID = 2147483546  # Iceberg's reserved id of the column file_path


def delete_entry(file: TableDeleteFile, metadata: TableMetadata) -> DataFile:
    """Raises `Unsupported` for all but position deletes in Parquet.

    A position delete names its rows by file, so it stays right with a new sequence number. Which rows an equality
    delete applies to depends on the order of all commits, which is lost.
    """
    if file.content != "position" or file.file_type != "parquet":
        raise Unsupported(
            f"{file.file_path} deletes rows by {'equality' if file.content == 'equality' else file.file_type}, and is "
            "not in Iceberg any more: it can't be added again without bringing other rows back or deleting more. "
            "Restore the table's metadata in the catalog"
        )
    spec, partition = _partition(file, metadata)
    only = {} if file.referenced_data_file is None else {_PATH_ID: file.referenced_data_file.encode()}
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=file.file_path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=file.row_count,
        file_size_in_bytes=file.file_size,
        lower_bounds=only,
        upper_bounds=only,
    )
    made.spec_id = spec.spec_id
    return made


def _partition(file: TableDeleteFile, metadata: TableMetadata) -> tuple[PartitionSpec, Record]:
    """Prefers the spec of the row: a table that was created again has other ids."""
    specs = sorted(metadata.specs().values(), key=lambda spec: spec.spec_id != file.spec_id)
    for spec in specs:
        schema = schema_of(metadata, spec)
        with suppress(PartitionProblem):
            values = Partitioning(TableSchema(0, schema, spec, UNSORTED_SORT_ORDER)).values(file.partition_path)
            return spec, values
    raise Unsupported(f"{file.file_path}: the table has no partition spec for {file.partition_path!r}")
