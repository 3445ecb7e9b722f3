"""Iceberg tables of a registry in DynamoDB, written and read by PyIceberg through `astha catalog`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from astha.testing import RecordingSubscriber
from registry.connect import open_store
from registry.models import IcebergCommit, LakeTable, TableDeleteFile, TableFile, TableMetadata, TableStats
from tests.fixtures.daemons import RunDaemon
from tests.integration.astha.processes import prepared
from tests.servers.catalog_process import CatalogProcess

pytestmark = pytest.mark.long

KINDS = (LakeTable, TableMetadata, TableFile, TableStats, TableDeleteFile, IcebergCommit)
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


async def test_commits_by_pyiceberg_become_events(dynamodb_url: str, tmp_path: Path, run_daemon: RunDaemon) -> None:
    seen = RecordingSubscriber(*(kind.table for kind in KINDS), whole_transactions=True)
    running = await run_daemon(dynamodb_url, {"seen": seen})
    await running.live()
    catalog = CatalogProcess(tmp_path, dynamodb_url, str(tmp_path / "warehouse"))
    try:
        await asyncio.to_thread(catalog.start)
        assert await asyncio.to_thread(_write, catalog.uri) == [1, 3, 4]
        await asyncio.to_thread(catalog.restart)  # kill -9
        assert await asyncio.to_thread(_read, catalog.uri) == [1, 3, 4]
    finally:
        await asyncio.to_thread(catalog.stop)
    store = await open_store(dynamodb_url)
    try:
        await running.agree(store)
        table = await store.get_table("sales", "orders")
        assert table is not None
        assert table.row_count == 3
    finally:
        await store.close()
    await running.stop()
    created, *commits = seen.transactions
    assert [type(event.data) for event in created] == [LakeTable, IcebergCommit, TableMetadata]
    assert len(commits) >= 3
    assert all(isinstance(events[0].data, IcebergCommit) for events in commits)


def _client(uri: str) -> Catalog:
    return load_catalog("astha", type="rest", uri=uri)


def _write(uri: str) -> list[int]:
    catalog = _client(uri)
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", ROWS.schema)
    table.append(ROWS)
    table.append(pa.table({"id": pa.array([4], pa.int64()), "name": ["d"]}))
    table.delete("id = 2")
    return _read(uri)


def _read(uri: str) -> list[int]:
    found = _client(uri).load_table("sales.orders").scan().to_arrow()
    return sorted(found.column("id").to_pylist())


def test_inserts_are_committed_by_the_updater_and_served_by_the_catalog(dynamodb_url: str, tmp_path: Path) -> None:
    with prepared(dynamodb_url, tmp_path) as astha:
        (tmp_path / "subscriptions.yaml").write_text(
            "components:\n"
            "  iceberg_updater: {tables: [table_metadata, table_files, table_delete_files, iceberg_commits]}\n"
        )
        (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in (1, 3, 4)))
        daemon = astha.run()
        daemon.until_ready()
        for command in (
            ("tables", "create", "sales.orders", "--column", "id:long"),
            ("insert", "sales.orders", "rows.jsonl"),
            ("verify", "--files"),
        ):
            done = astha(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        with CatalogProcess(tmp_path, dynamodb_url, str(tmp_path / "warehouse")) as catalog:
            assert _read(catalog.uri) == [1, 3, 4]
            _client(catalog.uri).load_table("sales.orders").append(pa.table({"id": pa.array([7], pa.int64())}))
        done = astha("verify", "--files")
        assert done.returncode == 0, (done.stdout, done.stderr)
