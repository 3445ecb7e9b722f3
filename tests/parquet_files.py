"""Parquet files with statistics, like those of the lake's writers, for tests that need files but no writer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from components.lib.lake.partitioning.partition_values import split
from components.lib.lake.schema.table_schema import TableSchema
from registry.inputs import FileDraft
from registry.json_text import JsonText, to_json_text
from registry.models import ColumnStats, TableFile

COLUMNS = (
    NestedField(1, "id", LongType(), required=True),
    NestedField(5, "name", StringType(), required=False),  # a gap, as after a dropped column
    NestedField(7, "at", TimestamptzType(), required=False),
)
PLAIN = TableSchema(1, Schema(*COLUMNS), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)
BY_DAY = TableSchema(
    1, Schema(*COLUMNS), PartitionSpec(PartitionField(7, 1000, DayTransform(), "at_day")), UNSORTED_SORT_ORDER
)
BY_NAME = TableSchema(
    1, Schema(*COLUMNS), PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "name")), UNSORTED_SORT_ORDER
)


def row(number: int, name: str | None = None, at: Any = None) -> dict[str, Any]:
    return {"id": number, "name": name, "at": at}


def write_file(
    directory: Path,
    rows: Sequence[dict[str, Any]],
    schema: TableSchema = PLAIN,
    *,
    name: str | None = None,
    partition_path: str = "",
    statistics: bool = True,
) -> FileDraft:
    """Writes one file of one partition."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / (name or f"{len(list(directory.iterdir())):05}.parquet")
    pq.write_table(pa.Table.from_pylist(list(rows), schema.arrow()), path, compression="zstd")
    return FileDraft(
        file_path=path.resolve().as_uri(),
        file_size=path.stat().st_size,
        row_count=len(rows),
        schema_version=schema.version,
        partition_path=partition_path,
        column_stats=read_statistics(path, schema) if statistics else None,
    )


def write_files(directory: Path, rows: Sequence[dict[str, Any]], schema: TableSchema) -> list[FileDraft]:
    """Writes one file per partition."""
    parts = split(pa.Table.from_pylist(list(rows), schema.arrow()), schema)
    return [write_file(directory, part.to_pylist(), schema, partition_path=path) for path, part in parts]


def read_statistics(path: Path, schema: TableSchema) -> JsonText:
    found = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(path), compute_statistics_plan(schema.iceberg, {}), parquet_path_to_id_mapping(schema.iceberg)
    ).to_serialized_dict()
    return to_json_text(
        {
            str(key): ColumnStats(
                value_count=count,
                null_count=found["null_value_counts"].get(key, 0),
                size_bytes=found["column_sizes"].get(key),
                lower=_text(found["lower_bounds"].get(key)),
                upper=_text(found["upper_bounds"].get(key)),
            )
            for key, count in found["value_counts"].items()
        }
    )


def as_row(draft: FileDraft, table_id: int = 1, file_id: int = 1, operation: str = "insert") -> TableFile:
    """Returns the row that the registry would store."""
    return TableFile(
        id=file_id,
        table_id=table_id,
        file_name=draft.file_name,
        file_path=draft.file_path,
        file_size=draft.file_size,
        file_type=draft.file_type,
        partition_path=draft.partition_path,
        row_count=draft.row_count,
        checksum=draft.checksum,
        is_compressed=draft.is_compressed,
        schema_version=draft.schema_version,
        column_stats=draft.column_stats,
        operation=operation,  # type: ignore[arg-type]
        operation_id=None,
        created_at=0,
        modified_at=0,
    )


def _text(bound: bytes | None) -> str | None:
    return None if bound is None else b64encode(bound).decode()
