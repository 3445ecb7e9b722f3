"""The examples in the docstrings of `astha.connect`, `astha.open` and what they return are run, beside a daemon."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

import astha
from components.api import AsyncLake, Lake, Scan, async_lake, scan, sync_lake
from components.lib.streams.format import NewRecord
from tests.integration.astha.processes import Astha
from tests.integration.components.api.test_python_page import SUBSCRIPTIONS

pytestmark = pytest.mark.slow

NAMES = {
    "astha": astha, "asyncio": asyncio, "duckdb": duckdb, "pa": pa, "pandas": pandas, "polars": polars,
    "datetime": datetime, "Decimal": Decimal, "NewRecord": NewRecord, "UTC": UTC,
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    directory = tmp_path_factory.mktemp("examples")
    (directory / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        url = f"sqlite:///{directory}/lake.db"
        with astha.connect(url, create=True) as opened:
            running = Astha(directory, url, {}).run()
            try:
                yield opened
            finally:
                running.close()


def examples(module: ModuleType) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(module, globs={})
    return sorted((each for each in found if each.examples), key=lambda each: each.lineno or 0)


def run(module: ModuleType, names: dict[str, object]) -> None:
    session = {**NAMES, **names}
    report: list[str] = []
    for each in examples(module):
        each.globs = session
        failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(each, out=report.append, clear_globs=False)
        assert failed == 0, "".join(report)


def test_examples(lake: Lake) -> None:
    run(sync_lake, {"lake": lake})


def test_examples_of_asyncio(lake: Lake) -> None:
    run(async_lake, {})


def test_examples_of_a_scan(lake: Lake, tmp_path: Path) -> None:
    with astha.connect(f"sqlite:///{Path.cwd()}/lake.db") as own:
        own.create_table("scan.t", {"id": "long!", "left": "int"})
        own.insert("scan.t", [{"id": 1, "left": 5}, {"id": 2, "left": None}])
        own.wait_visible("scan.t")
        run(scan, {"scan": own.scan("scan.t")})


@pytest.mark.parametrize("kind", [Lake, AsyncLake, Scan])
def test_every_public_method_is_documented(kind: type) -> None:
    public = {name: value for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
    assert [name for name, value in public.items() if not value.__doc__] == []
    if kind is not AsyncLake:
        assert [name for name, value in public.items() if ">>>" not in value.__doc__] == []
