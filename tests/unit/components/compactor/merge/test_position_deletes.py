"""Merges of files whose rows other engines have deleted by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyiceberg.transforms import IdentityTransform

from components.compactor.execution.swap import ResultMismatch, check_result
from components.compactor.merge import DeleteInput, MergeFailed, MergeInput, MergeResult, MergeTask, merge
from components.lib.lake.schema.table_schema import TableSchema
from registry.json_text import to_json_text
from tests.delete_files import write_positions
from tests.lake import EVERYTHING, FULL_ROW, order_of, rows_of, table_schema
from tests.unit.components.compactor.merge.groups import path_of, read, task, write

PLAIN = table_schema(EVERYTHING)
SORTED = table_schema(EVERYTHING, order=order_of((1, IdentityTransform(), "desc last")))
SMALL_GROUPS = to_json_text({"row_group_rows": 4})


def group(directory: Path, schema: TableSchema = PLAIN, files: int = 3, rows: int = 10) -> list[MergeInput]:
    """Files with the ids 0 to 9, 10 to 19, ... in row groups of four rows."""
    return [
        write(
            directory / f"in-{file}.parquet",
            rows_of(schema, *({**FULL_ROW, "id": file * rows + row} for row in range(rows))),
            schema,
            engine_config=SMALL_GROUPS,
        )
        for file in range(files)
    ]


def deletes(path: Path, deleted: Mapping[str, Sequence[int]]) -> DeleteInput:
    size, rows = write_positions(path, deleted)
    return DeleteInput(path.as_uri(), size, rows)


def merged(made: MergeTask) -> tuple[list[int], MergeResult]:
    result = merge(made)
    check_result(made, result)
    return sorted(read(result)["id"].to_pylist()), result


@pytest.mark.parametrize("schema", [PLAIN, SORTED])
def test_deleted_rows_are_left_out(tmp_path: Path, schema: TableSchema) -> None:
    inputs = group(tmp_path, schema)
    first = deletes(tmp_path / "d1", {inputs[0].path: [0, 3, 4, 9], inputs[1].path: [5]})
    second = deletes(tmp_path / "d2", {inputs[0].path: [3, 8], "file:///elsewhere": [7]})  # 3 is deleted twice
    made = task(tmp_path, inputs, schema, deletes=(first, second), copy_above_bytes=0)
    ids, result = merged(made)
    gone = (0, 1, 5, 6, 9, 14) if schema is SORTED else (0, 3, 4, 8, 9, 15)  # sorted files begin with their largest id
    assert ids == [number for number in range(30) if number not in gone]
    assert (result.rows_in, result.rows_out, result.rows_deleted) == (24, 24, 6)
    assert result.strategy == ("sort" if schema is SORTED else "binpack")
    assert result.named_by_deletes == {first.path: (), second.path: ("file:///elsewhere",)}


def test_files_that_no_delete_file_names_are_copied(tmp_path: Path) -> None:
    inputs = group(tmp_path)
    other = deletes(tmp_path / "d1", {"file:///elsewhere": [7]})
    ids, result = merged(task(tmp_path, inputs, PLAIN, deletes=(other,), copy_above_bytes=0))
    assert ids == list(range(30))
    assert result.strategy == "copy"


def test_nothing_is_written_if_all_rows_are_deleted(tmp_path: Path) -> None:
    inputs = group(tmp_path, files=2)
    everything = deletes(tmp_path / "d1", {file.path: range(10) for file in inputs})
    made = task(tmp_path, inputs, PLAIN, deletes=(everything,))
    result = merge(made)
    check_result(made, result)
    assert (result.files, result.rows_deleted) == ([], 20)


def test_an_unreadable_delete_file_fails_the_merge(tmp_path: Path) -> None:
    inputs = group(tmp_path)
    good = deletes(tmp_path / "d1", {inputs[0].path: [1]})
    made = task(tmp_path, inputs, PLAIN, deletes=(good,))
    path_of(good.path).unlink()
    with pytest.raises(MergeFailed, match=r"d1 does not exist, so that rows which were deleted would come back"):
        merge(made)
    path_of(good.path).write_bytes(b"x" * good.size)
    with pytest.raises(MergeFailed, match="d1 can't be read"):
        merge(made)
    path_of(good.path).write_bytes(b"short")
    with pytest.raises(MergeFailed, match="5 bytes where the registry says"):
        merge(made)
    beyond = deletes(tmp_path / "d2", {inputs[0].path: [10]})
    with pytest.raises(MergeFailed, match="names a row that"):
        merge(task(tmp_path, inputs, PLAIN, deletes=(beyond,)))
    with pytest.raises(MergeFailed, match="has 1 rows, the registry says 2"):
        merge(task(tmp_path, inputs, PLAIN, deletes=(DeleteInput(beyond.path, beyond.size, 2),)))
    large = DeleteInput(beyond.path, beyond.size, 1 << 30)
    with pytest.raises(MemoryError, match="delete files need about"):
        merge(task(tmp_path, inputs, PLAIN, deletes=(large,)))


def test_a_result_that_left_out_too_many_rows_is_refused(tmp_path: Path) -> None:
    inputs = group(tmp_path)
    one = deletes(tmp_path / "d1", {inputs[0].path: [1]})
    result = merge(task(tmp_path, inputs, PLAIN, deletes=(one,)))
    with pytest.raises(ResultMismatch, match="more than its delete files have"):
        check_result(task(tmp_path, inputs, PLAIN), result)
