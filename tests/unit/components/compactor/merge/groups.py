"""Groups of small files on disk, and tasks that merge them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.merge import MergeInput, MergeResult, MergeTask
from components.lib.lake.files import engine_of
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.output_streams import checksum_of
from registry.json_text import EMPTY_OBJECT, JsonText
from registry.models import TableMetadata


def metadata(schema: TableSchema, *, engine_config: JsonText = EMPTY_OBJECT) -> TableMetadata:
    draft = schema.draft()
    return TableMetadata(
        schema.version, 1, schema.version, draft.schema, draft.storage_engine, engine_config, draft.format,
        draft.compression, draft.partition_by, draft.sort_by, draft.properties, 0, 0, 0,
    )  # fmt: skip


def write(
    path: Path, rows: pa.Table, schema: TableSchema, *, engine_config: JsonText = EMPTY_OBJECT, statistics: bool = True
) -> MergeInput:
    """Writes a file as the storage manager does."""
    with path.open("wb") as sink:
        written = engine_of(schema, engine_config).write(rows, schema, sink)
    statistics_kept = written.column_stats if statistics else None
    return MergeInput(path.as_uri(), written.size, written.rows, schema.version, statistics_kept, written.checksum)


def task(
    directory: Path, inputs: Sequence[MergeInput], schema: TableSchema, *older: TableSchema, many: int = 1, **rest: Any
) -> MergeTask:
    config = rest.pop("engine_config", EMPTY_OBJECT)
    return MergeTask(
        operation_id="op",
        table="shop.orders",
        partition_path="",
        inputs=tuple(inputs),
        outputs=tuple((directory / f"out-{number}.parquet").as_uri() for number in range(many)),
        versions=(metadata(schema, engine_config=config), *map(metadata, older)),
        **rest,
    )


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def read(result: MergeResult) -> pa.Table:
    """Returns all rows of the new files, and checks them against their drafts."""
    tables = []
    for file in result.files:
        data = path_of(file.file_path).read_bytes()
        assert (file.file_size, file.checksum) == (len(data), checksum_of(data))
        tables.append(pq.ParquetFile(pa.BufferReader(data)).read())
        assert tables[-1].num_rows == file.row_count
    return pa.concat_tables(tables)
