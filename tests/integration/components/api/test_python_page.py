"""The code of docs/how-to/python.md runs as it stands there, on both databases, beside a daemon."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import astha
from astha.errors import AsthaError
from components.lib.storage_manager import RowsRefused
from registry.errors import NotFound
from tests.integration.astha.processes import ROOT, Astha

PAGE = (ROOT / "docs" / "how-to" / "python.md").read_text()
SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    return tmp_path


@pytest.fixture
def daemon(url: str, directory: Path) -> Iterator[None]:
    command = Astha(directory, url, {})
    running = command.run()
    try:
        yield
    finally:
        running.close()


def test_the_page(url: str, daemon: None) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)).replace("sqlite:///lake.db", url)
    exec(compile(code, "docs/how-to/python.md", "exec"), {"__name__": "page"})  # noqa: S102


def test_inserts_of_every_kind_and_their_errors(url: str, directory: Path) -> None:
    with astha.connect(url) as lake:
        lake.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
        lake.create_table("t", {"id": "long!"}, if_not_exists=True)
        rows = pa.table({"id": [1, 2]})
        assert lake.insert("t", rows).rows == 2
        assert lake.insert("t", duckdb.connect().sql("SELECT 3::BIGINT AS id")).rows == 1
        (directory / "rows.csv").write_text("id\n4\n5\n")
        assert lake.insert("t", directory / "rows.csv", id="csv").repeated is False
        again = lake.insert("t", "rows.csv", id="csv")
        assert (again.rows, again.repeated) == (2, True)
        with pytest.raises(RowsRefused, match="row 1, column 'id'"):
            lake.insert("t", [{"id": "five"}])
        with pytest.raises(AsthaError, match="not in the Iceberg catalog yet"):
            lake.scan("default.t" if "default.t" in lake.tables() else "t")
        with pytest.raises(TimeoutError, match="astha status"):
            lake.wait_visible("t", timeout_s=0.1)
        with pytest.raises(NotFound, match="topic 'clicks' does not exist"):
            lake.produce("clicks", ["one"])
    with pytest.raises(RuntimeError, match="closed"):
        lake.tables()


async def test_the_blocking_lake_works_inside_a_running_loop(url: str, directory: Path) -> None:
    with astha.connect(url) as lake:
        lake.create_table("a.t", {"id": "long"})
    async with astha.open(url) as same:
        await asyncio.gather(*(same.insert("a.t", [{"id": number}]) for number in range(3)))
        assert await same.tables() == ["a.t"]


def test_the_module_loads_the_api_on_first_use() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        astha.nothing  # type: ignore[attr-defined]  # noqa: B018
