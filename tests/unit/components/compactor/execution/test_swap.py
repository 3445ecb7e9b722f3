from __future__ import annotations

from typing import Any

import msgspec
import pytest

from components.compactor.execution.swap import ResultMismatch, check_result
from components.compactor.merge import MergeInput, MergeResult, MergeTask
from registry.inputs import FileDraft

TASK = MergeTask(
    operation_id="op", table="shop.orders", partition_path="day=1",
    inputs=(MergeInput("file:///a", 1, 2, 1), MergeInput("file:///b", 1, 3, 1)),
    outputs=("file:///x", "file:///y"), versions=(),
)  # fmt: skip
FILE = FileDraft(file_path="file:///x", file_size=1, row_count=5, schema_version=1, partition_path="day=1")
GOOD = MergeResult(
    files=[FILE], rows_in=5, rows_out=5, checksums_in={0: "a", 1: "b"}, checksums_out={0: "a", 1: "b"}, bytes_read=1,
    bytes_written=1, strategy="copy", why="", seconds={},
)  # fmt: skip


def test_an_equal_result_passes() -> None:
    check_result(TASK, GOOD)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"rows_in": 4}, "4 read"),
        ({"rows_out": 6}, "6 written"),
        ({"rows_in": 4, "rows_out": 4}, "4 read"),
        ({"files": []}, "0 in the new files"),
        ({"files": [msgspec.structs.replace(FILE, row_count=4)]}, "4 in the new files"),
        ({"checksums_out": {0: "a", 1: "c"}}, "fields 1 differ"),
        ({"checksums_out": {0: "a"}}, "fields 1 differ"),
        ({"checksums_in": {}, "checksums_out": {}}, "no checksums"),
        ({"files": [msgspec.structs.replace(FILE, file_path="file:///z")]}, "announced"),
        ({"files": [msgspec.structs.replace(FILE, partition_path="day=2")]}, "day=2"),
    ],
)
def test_differences_are_named(difference: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultMismatch, match=message) as mismatch:
        check_result(TASK, msgspec.structs.replace(GOOD, **difference))
    assert "shop.orders day=1" in str(mismatch.value)


def test_a_duplicate_input_file() -> None:
    half = msgspec.structs.replace(FILE, row_count=2)
    other = msgspec.structs.replace(FILE, row_count=3)
    with pytest.raises(ResultMismatch, match="announced"):
        check_result(TASK, msgspec.structs.replace(GOOD, files=[half, other]))
