from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from components.lib.lake.files import engine_of
from components.lib.lake.files.footers import (
    BadFooter,
    ending_length,
    read_arrow_schema,
    read_columns,
    read_ending,
    read_statistics,
)
from components.lib.lake.iceberg.data_files import DataFiles
from components.lib.lake.iceberg.errors import BadFile, CatalogUnavailable
from components.lib.lake.isolation import ChildNotStarted, ChildPool
from components.lib.lake.schema.type_syntax import SyntaxProblem
from components.lib.storage_manager.readers import Unreadable, open_source
from tests.parquet_files import PLAIN, as_row, row, write_file
from tests.poison import HANGS, aborting, poison


def stored() -> bytes:
    sink = io.BytesIO()
    engine_of(PLAIN).write(pa.Table.from_pylist([row(1, "x"), row(2, None)], PLAIN.arrow()), PLAIN, sink)
    return sink.getvalue()


DATA = stored()


def test_a_good_footer() -> None:
    assert read_arrow_schema(DATA).equals(PLAIN.arrow())
    found = read_statistics(DATA, PLAIN.iceberg)
    assert (found.record_count, found.value_counts, found.null_value_counts[5]) == (2, {1: 2, 5: 2, 7: 2}, 1)
    assert found.lower_bounds[1] == (1).to_bytes(8, "little")
    assert read_ending(io.BytesIO(DATA)) == DATA[-ending_length(DATA) :]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a Parquet file"),
        (DATA[:-1] + b"x", "not a Parquet file"),
        (DATA[-100:], "cut off"),
        (b"\xff\xff\xff\xffPAR1", "at most .* are read"),
        (HANGS, "thrift"),
        (aborting(DATA), "reading its footer ends the process.*SIGABRT"),
    ],
)
def test_a_bad_footer(data: bytes, why: str) -> None:
    with pytest.raises(BadFooter, match=why):
        read_arrow_schema(data)
    with pytest.raises(BadFooter, match=why):
        read_statistics(data, PLAIN.iceberg)


def test_a_footer_that_aborts_its_reader_is_reported_for_its_file(tmp_path: Path) -> None:
    """For each reader of footers: the Iceberg updater, `tables create --like` and `insert`."""
    draft = write_file(tmp_path, [row(1, "x")], statistics=False)
    path = tmp_path / draft.file_name
    made = DataFiles(PLAIN).make(as_row(draft), 0, PyArrowFileIO())
    assert (made.record_count, made.value_counts) == (1, {1: 1, 5: 1, 7: 1})
    poison(path)
    with pytest.raises(BadFile, match=rf"{path.name} has no statistics.*SIGABRT.*Remove the file"):
        DataFiles(PLAIN).make(as_row(draft), 0, PyArrowFileIO())
    with pytest.raises(SyntaxProblem, match=rf"{path.name} can't be read as Parquet.*SIGABRT"):
        read_columns(path)
    with path.open("rb") as file, pytest.raises(Unreadable, match=r"not a Parquet file.*SIGABRT"):
        open_source(file, path.stat().st_size, "parquet", PLAIN, fill_missing=False)


def test_no_file_is_blamed_if_no_child_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_args: object, **_options: object) -> bytes:
        raise ChildNotStarted("no memory for another process")

    monkeypatch.setattr(ChildPool, "call", none)
    file = as_row(write_file(tmp_path, [row(1, "x")], statistics=False))
    with pytest.raises(CatalogUnavailable, match="no memory"):
        DataFiles(PLAIN).make(file, 0, PyArrowFileIO())


def test_a_row_count_that_differs_from_the_registered_one_is_refused(tmp_path: Path) -> None:
    file = as_row(write_file(tmp_path, [row(1, "x")], statistics=False))
    with pytest.raises(BadFile, match="registered with 9 rows, but has 1"):
        DataFiles(PLAIN).make(msgspec.structs.replace(file, row_count=9), 0, PyArrowFileIO())
