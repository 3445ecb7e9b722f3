"""A table whose storage fails or hangs is reported; the others are verified."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from astha.cli.exit_codes import Exit
from components.commands.verify.report import DifferenceKind
from components.lib.lake.iceberg.catalog_thread import call_with_timeout
from components.lib.lake.storage.locations import parse
from registry.models import LakeTable
from tests.integration.components.commands.verify.conftest import Stage
from tests.integration.components.commands.verify.test_cli import call
from tests.lake import table_schema


def replace_directory_with_a_file(table: LakeTable) -> None:
    place = parse(table.location).path
    place.rename(place.with_name(f"{place.name}.aside"))
    place.write_text("in the way")


async def test_other_tables_are_verified(stage: Stage) -> None:
    good, bad = await stage.create("good"), await stage.create("bad")
    await stage.insert(good)
    await stage.insert(bad)
    await stage.commit()
    replace_directory_with_a_file(bad)
    report = await stage.verify(files=True)
    by_name = {table.table: table for table in report.tables}
    assert by_name["shop.good"].equal
    assert DifferenceKind.NO_ANSWER in {difference.kind for difference in by_name["shop.bad"].differences}
    done = await call(stage)
    assert done.exit_code == Exit.PROBLEM
    assert "shop.good  equal" in done.stdout
    assert "its storage does not answer" in done.stdout


async def test_the_updaters_problem_is_the_cause(stage: Stage) -> None:
    """Although the ledger's position has passed the missing files."""
    bad = await stage.store.create_table("shop", "bad", "file:///proc/nope/bad", table_schema().draft())
    await stage.commit()
    (table,) = (await stage.verify(bad)).tables
    assert "the Iceberg updater cannot update shop.bad" in table.differences[0].cause.reason
    assert "/proc/nope" in table.differences[0].cause.reason


answers = threading.Event()
_open = PyArrowFileIO.new_input


def open_when_it_answers(io: PyArrowFileIO, location: str) -> Any:
    if "/hanging" in location:
        answers.wait()
    return _open(io, location)


@pytest.mark.slow
async def test_hanging_storage_ends_with_the_timeout(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    good, hanging = await stage.create("good"), await stage.create("hanging")
    await stage.insert(good)
    await stage.commit()
    answers.clear()
    monkeypatch.setattr("components.commands.verify.settled_diffs._SHORTEST_S", 2.0)
    monkeypatch.setattr(PyArrowFileIO, "new_input", open_when_it_answers)
    try:
        report = await stage.verify(good, hanging, timeout_s=2.0)
    finally:
        answers.set()
    by_name = {table.table: table for table in report.tables}
    assert by_name["shop.good"].equal
    (difference,) = by_name["shop.hanging"].differences
    assert difference.items == ["no answer within 2 s"]


async def test_an_error_of_a_call_is_raised() -> None:
    def fail() -> None:
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        await call_with_timeout(fail, 30)
