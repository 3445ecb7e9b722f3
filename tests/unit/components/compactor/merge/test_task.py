from __future__ import annotations

import pickle

import msgspec
import pytest
from pydantic import SecretStr

from astha.subscribers.context import LakeSettings, S3Settings
from components.compactor.merge import MergeInput, MergeResult, MergeTask, Strategy
from registry.json_text import JsonText, parse_json
from registry.models import TableFile, TableMetadata
from tests.lake import table_schema

DRAFT = table_schema().draft()
VERSION = TableMetadata(
    1, 1, 1, DRAFT.schema, "parquet", DRAFT.engine_config, "parquet", "zstd", DRAFT.partition_by, DRAFT.sort_by,
    DRAFT.properties, 0, 0, 0,
)  # fmt: skip


def test_a_task_survives_pickling() -> None:
    task = MergeTask(
        operation_id="op",
        table="shop.orders",
        partition_path="day=2024-05-01",
        inputs=(MergeInput("file:///a", 1, 2, 1, JsonText("{}")),),
        outputs=("file:///b",),
        versions=(VERSION,),
        lake=LakeSettings(s3=S3Settings(secret_key=SecretStr("hidden"))),
    )
    back = pickle.loads(pickle.dumps(task))  # noqa: S301
    assert back == task
    assert parse_json(back.versions[0].schema) == parse_json(VERSION.schema)
    assert back.lake.s3.secret_key.get_secret_value() == "hidden"


def test_a_result_is_proven_by_all_of_its_sums() -> None:
    result = MergeResult(
        files=[], rows_in=1, rows_out=1, checksums_in={0: "a", 1: "b"}, checksums_out={0: "a", 1: "b"}, bytes_read=1,
        bytes_written=1, strategy="sort", why="", seconds={},
    )  # fmt: skip
    assert result.proven
    assert not msgspec.structs.replace(result, rows_out=2).proven
    assert not msgspec.structs.replace(result, checksums_out={0: "a"}).proven
    assert not msgspec.structs.replace(result, checksums_out={0: "a", 1: "c"}).proven


@pytest.mark.parametrize(
    ("strategy", "kept"), [("auto", True), ("copy", True), ("binpack", False), ("sort", False), ("zorder", False)]
)
def test_statistics_travel_only_to_a_copy(strategy: Strategy, kept: bool) -> None:
    stats = JsonText("{}")
    file = TableFile(1, 1, "a", "file:///a", 5, "parquet", "", 2, "sha256:x", True, 3, stats, "insert", None, 0, 0)
    assert MergeInput.of(file, strategy) == MergeInput("file:///a", 5, 2, 3, stats if kept else None, "sha256:x")
