"""The code of docs/how-to/python.md runs as it stands there, on both databases, beside a daemon."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

import astha
from astha.errors import AsthaError, ConfigError
from components.api.scan import _library
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
    monkeypatch.setenv("ASTHA_LAKE__WAREHOUSE", str(tmp_path / "warehouse"))
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
        (directory / "rows.txt").write_text("id\n6\n")
        assert lake.insert("t", directory / "rows.txt", format="csv").rows == 1
        with pytest.raises(AsthaError, match="format="):
            lake.insert("t", directory / "rows.txt")
        with pytest.raises(astha.RowsRefused, match="row 1, column 'id'"):
            lake.insert("t", [{"id": "five"}])
        with pytest.raises(AsthaError, match="not in the Iceberg catalog yet"):
            lake.scan("default.t" if "default.t" in lake.tables() else "t")
        with pytest.raises(TimeoutError, match="astha status"):
            lake.wait_visible("t", timeout_s=0.1)
        with pytest.raises(NotFound, match="topic 'clicks' does not exist"):
            lake.produce("clicks", ["one"])
    with pytest.raises(RuntimeError, match="closed"):
        lake.tables()


def test_one_string_is_one_name_and_no_records(url: str, directory: Path) -> None:
    with astha.connect(url) as lake:
        assert url.rpartition("/")[2] in repr(lake)
        lake.create_table("a.t", {"id": "long", "region": "string"}, partition_by="region", sort_by="region")
        lake.create_topic("clicks")
        for wrong in ("one", b"one", astha.NewRecord(b"one")):
            with pytest.raises(TypeError, match="put it in a list"):
                lake.produce("clicks", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="record 2: is int: give bytes"):
            lake.produce("clicks", ["one", 2])  # type: ignore[list-item]
        assert list(lake.consume("clicks")) == []


def test_a_loop_over_records_may_end_early(url: str, directory: Path) -> None:
    with astha.connect(url) as lake:
        lake.create_topic("clicks")
        lake.produce("clicks", ["one", "two"])
        for record in lake.consume("clicks", group="readers"):
            assert record.value == b"one"
            break
        assert [record.value for record in lake.consume("clicks", group="readers")] == [b"one", b"two"]


async def test_the_blocking_lake_works_inside_a_running_loop(url: str, directory: Path) -> None:
    with astha.connect(url) as lake:
        lake.create_table("a.t", {"id": "long"})
    async with astha.open(url) as same:
        await asyncio.gather(*(same.insert("a.t", [{"id": number}]) for number in range(3)))
        assert await same.tables() == ["a.t"]


def test_the_registry_keeps_the_warehouse(url: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTHA_LAKE__WAREHOUSE")
    with astha.connect(url, warehouse="lake") as lake:
        lake.create_table("a.t", {"id": "long"})
        lake.insert("a.t", [{"id": 1}])
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with astha.connect(url) as lake:
        assert lake.insert("a.t", [{"id": 2}]).rows == 1
    with pytest.raises(ConfigError, match="astha registry locations"):
        astha.connect(url, warehouse="lake")
    assert list(elsewhere.iterdir()) == []
    assert len(list((directory / "lake").rglob("*.parquet"))) == 2


def test_a_wrong_url_is_called_an_argument() -> None:
    with pytest.raises(ConfigError, match=r"^argument: registry\.url: .*use sqlite"):
        astha.connect("mysql://db/astha")


def test_the_module_loads_the_api_on_first_use() -> None:
    offered = {"AsyncLake", "InsertSummary", "Lake", "NewRecord", "Record", "RowsRefused", "Scan", "connect", "open"}
    assert offered <= set(dir(astha))
    assert all(getattr(astha, name) for name in offered)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        astha.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the extra `lake`: in a process of its own, because Arrow is loaded here."""
    program = "import sys; sys.modules['pyarrow'] = None; import astha; astha.connect"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: astha.connect needs pyarrow, which is not installed: pip install 'astha[lake]'" in (
        ended.stderr
    )
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "polars", None)
    with pytest.raises(ConfigError, match=r"to_polars needs polars, which is not installed: pip install polars"):
        _library("polars")
