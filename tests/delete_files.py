"""Delete files as other engines write them, for tests of tables that have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from registry.inputs import DeleteFileDraft
from registry.models import TableDeleteFile

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Iceberg's reserved field ids of the two columns."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


def write_positions(path: Path, deleted: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Writes a position delete file, sorted as the specification requires. Returns its size and rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"file_path": file, "pos": place} for file in sorted(deleted) for place in sorted(deleted[file])]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), path, row_group_size=2)  # with a dictionary each
    return path.stat().st_size, len(rows)


def position_deletes(path: Path, deleted: Mapping[str, Sequence[int]], **rest: Any) -> DataFile:
    """Writes the file. Returns its manifest entry, with the bounds that engines write."""
    size, rows = write_positions(path, deleted)
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path.resolve().as_uri(),
        file_format=FileFormat.PARQUET,
        partition=rest.get("partition", Record()),
        record_count=rows,
        file_size_in_bytes=size,
        lower_bounds={PATH_ID: min(deleted).encode()},
        upper_bounds={PATH_ID: max(deleted).encode()},
    )
    made.spec_id = rest.get("spec_id", 0)
    return made


def delete_row(number: int, *, table_id: int = 1, **rest: Any) -> TableDeleteFile:
    """Returns a registry row of position deletes in any data file of its partition."""
    fields: dict[str, Any] = {
        "file_path": f"file:///deletes-{number}.parquet", "file_size": 100, "file_type": "parquet",
        "content": "position", "row_count": 1, "partition_path": "", "spec_id": 0, "equality_ids": None,
        "referenced_data_file": None, "content_offset": 0, "sequence_number": 2, "snapshot_id": 1,
        "created_at": 0, "updated_at": 0,
    }  # fmt: skip
    return TableDeleteFile(id=number, table_id=table_id, **(fields | rest))


def delete_draft(file: DataFile, *, partition_path: str = "", **rest: Any) -> DeleteFileDraft:
    """Returns what the catalog registers for a position delete file."""
    return DeleteFileDraft(
        file_path=file.file_path,
        file_size=file.file_size_in_bytes,
        content="position",
        row_count=file.record_count,
        sequence_number=rest.pop("sequence_number", 2),
        partition_path=partition_path,
        spec_id=file.spec_id,
        **rest,
    )
