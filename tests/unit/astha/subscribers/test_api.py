"""`from astha.subscribers import ...` is all that a component needs, and it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import astha.subscribers as api
from registry.models import PUBLISHED

HEAVY = ("alembic", "fastapi", "psycopg", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "uvicorn")


def test_every_published_row_type_is_exported() -> None:
    assert {kind.__name__ for kind in PUBLISHED} <= set(api.__all__)


def test_all_names_exist_and_are_listed_once() -> None:
    assert len(api.__all__) == len(set(api.__all__))
    assert [name for name in api.__all__ if not hasattr(api, name)] == []


@pytest.mark.parametrize("module", ["astha.subscribers", "astha.testing"])
def test_the_import_loads_no_database_and_no_lake_library(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
