"""docs/how-to/query.md: the blocks for DuckDB, PyIceberg and Spark SQL, run against `astha catalog`.

The test replaces the catalog's address in them. Blocks in other languages are for engines that are not run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from registry.migrate import migrate
from tests.code_blocks import code_blocks
from tests.e2e.engines import load_extensions
from tests.integration.astha.processes import ROOT
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.servers.catalog_process import CatalogProcess

PAGE = ROOT / "docs" / "how-to" / "query.md"
ADDRESS = "http://127.0.0.1:27841"
NOT_RUN = {"ini", "flink", "snowflake"}
ROWS = pa.table({"id": [1, 2, 3], "region": ["eu", "us", "eu"], "amount": [10.5, 20.0, 7.25]})
BY_REGION = [["eu", 2, 17.75], ["us", 1, 20.0]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A catalog with the tutorial's table."""
    directory = tmp_path_factory.mktemp("catalog")
    url = f"sqlite:///{directory}/registry.db"
    migrate(url)
    with CatalogProcess(directory, url, str(directory / "warehouse")) as catalog:
        client = load_catalog("lake", type="rest", uri=catalog.uri)
        client.create_namespace("shop")
        client.create_table("shop.orders", ROWS.schema).append(ROWS)
        client.close()
        yield catalog.uri


def blocks(language: str, address: str) -> list[str]:
    return [block.text.replace(ADDRESS, address) for block in code_blocks(PAGE) if block.language == language]


def test_all_other_blocks_are_marked_as_not_run() -> None:
    run = {"sql", "python", "properties", "spark"}
    assert {block.language for block in code_blocks(PAGE)} == run | NOT_RUN
    sections = PAGE.read_text().split("\n## ")[1:]
    for section in sections:
        assert ("Not run here." in section) == any(f"```{language}\n" in section for language in NOT_RUN)


def test_duckdb(address: str) -> None:
    (text,) = blocks("sql", address)
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_extensions(connection, "httpfs", "avro", "iceberg")  # in place of `LOAD iceberg`, which reads a download
        found = connection.execute(text.replace("LOAD iceberg;\n", "")).fetchall()
    assert [list(row) for row in found] == BY_REGION


def test_pyiceberg(address: str) -> None:
    (text,) = blocks("python", address)
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102  (our own document)
    assert names["rows"].sort_by("id").to_pydict() == {"id": [1, 3], "amount": [10.5, 7.25]}
    names["catalog"].close()


@pytest.mark.slow
def test_spark_sql(address: str, tmp_path: Path) -> None:
    (configuration,) = blocks("properties", address)
    (statement,) = blocks("spark", address)
    start = "spark.sql.catalog.lake."
    settings = dict(line.split("=", 1) for line in configuration.splitlines())
    catalog = {name.removeprefix(start): value for name, value in settings.items() if name.startswith(start)}
    assert settings["spark.jars.packages"].split(":")[1:] == ["iceberg-spark-runtime-4.1_2.13", "1.11.0"]
    with Spark(tmp_path, catalog) as spark:  # whose catalog has another name
        assert spark.sql(statement.replace("lake.", "astha.")) == BY_REGION
