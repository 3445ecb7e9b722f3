from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from components.compactor.merge import MergeFailed, MergeInput, merge
from components.lake.schema import TableSchema
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, order_of, rows_of, table_schema
from tests.unit.components.compactor.merge.groups import path_of, read, task, write

PLAIN = table_schema(EVERYTHING)
SORTED = table_schema(EVERYTHING, order=order_of((1, IdentityTransform(), "desc last")))


def group(directory: Path, schema: TableSchema, files: int = 3, rows: int = 4) -> list[MergeInput]:
    return [
        write(
            directory / f"in-{file}.parquet",
            rows_of(
                schema,
                *({**(FULL_ROW if row % 2 else EMPTY_ROW), "id": row * files + file} for row in range(rows)),
            ),
            schema,
        )
        for file in range(files)
    ]


def shown(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(
    ("schema", "strategy", "used"),
    [(PLAIN, "auto", "copy"), (PLAIN, "copy", "copy"), (PLAIN, "binpack", "binpack"), (SORTED, "auto", "sort")],
)
def test_files_become_one_with_the_same_rows(tmp_path: Path, schema: TableSchema, strategy: str, used: str) -> None:
    inputs = group(tmp_path, schema)
    before = [path_of(file.path).read_bytes() for file in inputs]
    result = merge(task(tmp_path, inputs, schema, strategy=strategy, copy_above_bytes=0))
    assert result.strategy == used
    assert result.proven
    assert (result.rows_in, len(result.files)) == (12, 1)
    assert set(result.checksums_in) == {0, *(file_id for file_id in range(1, 25) if file_id not in (17, 19, 22))}
    rows = read(result)
    expected = pa.concat_tables([rows_of(schema, {**FULL_ROW, "id": 0}).slice(1)]).schema
    assert rows.schema.equals(expected)
    if used == "sort":
        assert rows.column("id").to_pylist() == sorted(range(12), reverse=True)
    else:
        assert sorted(rows.column("id").to_pylist()) == list(range(12))
    assert result.bytes_read == sum(file.size for file in inputs)
    assert [path_of(file.path).read_bytes() for file in inputs] == before
