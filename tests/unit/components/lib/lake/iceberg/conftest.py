from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from astha.subscribers import LakeSettings
from components.lib.lake.iceberg import IcebergTables, open_catalog
from registry.models import LakeTable


@pytest.fixture
def warehouse(sqlite_directory: Path) -> Path:
    return sqlite_directory / "warehouse"


@pytest.fixture
def tables(sqlite_url: str) -> Iterator[IcebergTables]:
    opened = IcebergTables(open_catalog(sqlite_url, LakeSettings()), "this-registry")
    yield opened
    opened.close()


@pytest.fixture
def other(sqlite_url: str) -> Iterator[IcebergTables]:
    """Stands for another process."""
    opened = IcebergTables(open_catalog(sqlite_url, LakeSettings()), "this-registry")
    yield opened
    opened.close()


@pytest.fixture
def table(warehouse: Path) -> LakeTable:
    return named("orders", warehouse)


def named(name: str, warehouse: Path, table_id: int = 7) -> LakeTable:
    location = (warehouse / "orders").resolve().as_uri()
    return LakeTable(table_id, "shop", name, location, 0, 0, 0, 0, "active", 0, 0)
