from __future__ import annotations

import sqlite3
import stat
import threading
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog

from astha.subscribers import LakeSettings, S3Settings
from components.lib.lake.iceberg import IcebergTables, RegistryCatalog, SnapshotChange, TableCommit, open_catalog
from components.lib.lake.iceberg.catalog import file_io_properties
from components.lib.lake.iceberg.tables import _locks
from components.lib.lake.storage.locations import parse
from registry.models import LakeTable, TableFile
from tests.parquet_files import PLAIN, as_row, row, write_file
from tests.unit.components.lib.lake.iceberg.conftest import named

SECRET = "hunter2-and-more"


def test_secrets_reach_only_the_storage(sqlite_url: str) -> None:
    s3 = S3Settings(access_key=SecretStr("key"), secret_key=SecretStr(SECRET), endpoint="http://127.0.0.1:1")
    assert file_io_properties(s3)["s3.secret-access-key"] == SECRET
    catalog = open_catalog(sqlite_url, LakeSettings(s3=s3))
    assert SECRET not in repr(catalog)
    assert SECRET not in str(catalog)
    catalog.close()


def test_a_url_with_a_password_is_not_a_property(postgres_url: str) -> None:
    catalog = open_catalog(postgres_url, LakeSettings())
    assert isinstance(catalog, RegistryCatalog)
    assert "uri" not in catalog.properties
    assert catalog.list_namespaces() == []
    catalog.close()


def test_any_catalog_of_pyiceberg_by_its_properties(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db", "name": "mine"}
    settings = LakeSettings(catalog={name: SecretStr(value) for name, value in properties.items()})
    catalog = open_catalog("sqlite:///registry.db", settings)
    assert isinstance(catalog, SqlCatalog)
    assert not isinstance(catalog, RegistryCatalog)
    assert catalog.name == "mine"
    catalog.close()


def test_the_catalog_waits_for_another_writer_of_the_registry(sqlite_url: str, table: LakeTable) -> None:
    """Both write to one file: the catalog waits for the other transaction instead of failing."""
    tables = IcebergTables(open_catalog(sqlite_url, LakeSettings()), "this-registry")
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    created = threading.Thread(target=tables.ensure, args=(table, PLAIN))
    created.start()
    created.join(0.2)
    assert created.is_alive(), "it waits"
    other.execute("COMMIT")
    created.join(30)
    assert tables.load(table) is not None
    other.close()
    tables.close()


def test_the_caches_of_tables_are_bounded(sqlite_url: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.lib.lake.iceberg.tables._MAX_LOADED", 3)
    monkeypatch.setattr("components.lib.lake.iceberg.catalog._MAX_TABLES", 2)
    tables = IcebergTables(open_catalog(sqlite_url, LakeSettings()), "this-registry")
    catalog = tables.catalog
    assert isinstance(catalog, RegistryCatalog)
    many = [named(f"orders{number}", warehouse, number) for number in range(1, 8)]
    for table in many:
        tables.ensure(table, PLAIN)
        tables.commit(table, lambda draft: draft.set_properties({"comment": "x"}))
    assert len(tables._loaded) == 3
    assert len(tables._manifests) <= 3
    assert len(catalog._metadata._snapshots) == 2
    assert not [key for key in _locks if isinstance(key, tuple) and key[0] == catalog.name]
    for table in many:  # read again where they were forgotten
        loaded = tables.load(table, cached=True)
        assert loaded is not None
        assert loaded.properties["comment"] == "x"
        assert tables.has(table)
    tables.close()


def test_tables_with_many_snapshots_count_more(
    sqlite_url: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.lib.lake.iceberg.tables._MAX_SNAPSHOTS", 4)
    tables = IcebergTables(open_catalog(sqlite_url, LakeSettings()), "this-registry")
    many = [named(f"orders{number}", warehouse, number) for number in range(1, 5)]
    for table in many:
        tables.ensure(table, PLAIN)
        for number in range(3):
            file = as_row(write_file(warehouse / table.name, [row(number)], name=f"{number}.parquet"))
            tables.commit(table, partial(_add, file))
    assert list(tables._loaded) == [4]
    assert list(tables._manifests) == [4]
    tables.close()


def _add(file: TableFile, draft: TableCommit) -> None:
    draft.add_snapshot(SnapshotChange([file]), {1: PLAIN})
    draft.set_stamp(None)


@pytest.mark.parametrize("chosen", [None, ("0640", "0750")])
def test_metadata_files_have_the_lakes_modes(sqlite_url: str, table: LakeTable, chosen: tuple[str, str] | None) -> None:
    lake = LakeSettings() if chosen is None else LakeSettings(file_mode=chosen[0], directory_mode=chosen[1])
    tables = IcebergTables(open_catalog(sqlite_url, lake), "this-registry")
    tables.ensure(table, PLAIN)
    tables.close()
    location = parse(table.location).path
    paths = [location, *location.rglob("*")]
    assert any(path.is_file() for path in paths)
    found = {path.is_dir(): set[str]() for path in paths}
    for path in paths:
        found[path.is_dir()].add(f"{stat.S_IMODE(path.stat().st_mode):04o}")
    file_mode, directory_mode = chosen or ("0600", "0700")
    assert found == {True: {directory_mode}, False: {file_mode}}


async def test_a_call_that_outlives_close_leaves_no_connection(url: str) -> None:
    """An updater that stops does not wait for a call that hangs; the call still uses the catalog when it returns."""
    catalog = open_catalog(url, LakeSettings())
    assert isinstance(catalog, RegistryCatalog)
    held = catalog.engine.connect()
    before = held.connection.dbapi_connection
    catalog.close()
    held.close()
    catalog.list_namespaces()
    after = catalog.engine.raw_connection()
    opened = after.dbapi_connection
    after.close()
    assert before is not None
    assert opened is not None
    for connection in (before, opened):
        with pytest.raises(Exception, match="closed"):
            connection.cursor().execute("SELECT 1")
