"""The same tests on a real Iceberg REST catalog, which keeps tables elsewhere and applies updates by its own rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyiceberg.catalog import load_catalog

from astha.subscribers import LakeSettings
from tests.integration.components.iceberg_updater import test_exactly_once, test_external_commits, test_updater
from tests.integration.components.iceberg_updater.test_exactly_once import _no_faults
from tests.integration.components.iceberg_updater.test_external_commits import table
from tests.servers.rest_catalog import RestCatalogServer

__all__ = ["_no_faults", "table"]

pytestmark = pytest.mark.slow

# They find the catalog by the registry's URL alone, or change its files.
_SQL_ONLY = {
    "test_the_commands",
    "test_a_command_leaves_another_registrys_table_alone",
    "test_a_later_format_is_left_alone",
}

for _module in (test_updater, test_external_commits, test_exactly_once):
    for _name, _member in vars(_module).items():
        if _name.startswith("test_") and callable(_member) and _name not in _SQL_ONLY:
            globals()[_name] = _member


@pytest.fixture(scope="module")
def rest_server(scratch: Path) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(scratch / "rest-catalog", (scratch / "rest-warehouse").as_uri()) as server:
        yield server


@pytest.fixture(params=["sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    """The registry's; the catalog is not in it."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def lake_settings(rest_server: RestCatalogServer) -> Iterator[LakeSettings]:
    yield LakeSettings(catalog={name: SecretStr(value) for name, value in rest_server.catalog.items()})
    with load_catalog("astha", **rest_server.catalog) as catalog:
        for namespace in catalog.list_namespaces():
            for identifier in catalog.list_tables(namespace):
                catalog.drop_table(identifier)
            catalog.drop_namespace(namespace)
