from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from components.compactor.merge import MergeInput, UnmergeableFile, inspect, inspection
from components.lib.lake.schema.table_schema import TableSchema
from tests.lake import EVERYTHING, FULL_ROW, rows_of, table_schema
from tests.poison import poison
from tests.unit.components.compactor.merge.groups import path_of, task, write

SCHEMA = table_schema(EVERYTHING)
FUNCTIONS = "tests.unit.components.lib.lake.child_functions"


def group(directory: Path, schema: TableSchema = SCHEMA, files: int = 3) -> list[MergeInput]:
    return [
        write(directory / f"in-{number}.parquet", rows_of(schema, {**FULL_ROW, "id": number}), schema)
        for number in range(files)
    ]


def test_bad_files_are_named_and_good_ones_are_not(tmp_path: Path) -> None:
    files = group(tmp_path, files=6)
    poison(path_of(files[1].path))
    files[1] = msgspec.structs.replace(files[1], checksum=None)
    path_of(files[2].path).unlink()
    path_of(files[3].path).write_bytes(bytes(files[3].size))
    files[4] = msgspec.structs.replace(files[4], rows=9)
    found = inspect(task(tmp_path, files, SCHEMA))
    assert [file.path for file in found] == [file.path for file in files[1:5]]
    for file, why in zip(found, ("type does not match", "does not exist", "not have the checksum", "9"), strict=True):
        assert why in file.reason
        assert str(file) == f"{file.path} {file.reason}"
    assert list(tmp_path.glob("out-*")) == []


def test_a_file_that_kills_or_hangs_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = group(tmp_path, files=1)
    monkeypatch.setattr(inspection, "_READ_ONE", f"{FUNCTIONS}:abort")
    (found,) = inspect(task(tmp_path, files, SCHEMA))
    assert found == UnmergeableFile(files[0].path, "is damaged: its reader crashes: its process was ended by SIGABRT")
    monkeypatch.setattr(inspection, "_READ_ONE", f"{FUNCTIONS}:sleep")
    monkeypatch.setattr(inspection, "_LIMIT_S", 0.1)
    (found,) = inspect(task(tmp_path, files, SCHEMA))
    assert "time limit" in found.reason


def test_inspection_stops_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = group(tmp_path)
    monkeypatch.setattr(inspection, "_READ_ONE", f"{FUNCTIONS}:fail")
    ticks = iter([0.0, 1.0, 11.0])
    found = inspect(task(tmp_path, files, SCHEMA, limit_s=10.0), clock=lambda: next(ticks))
    assert [file.path for file in found] == [files[0].path]


def test_a_footer_that_asks_for_more_memory_than_there_is(tmp_path: Path) -> None:
    (found,) = inspect(task(tmp_path, group(tmp_path, files=1), SCHEMA, memory_bytes=100))
    assert "MiB" in found.reason
