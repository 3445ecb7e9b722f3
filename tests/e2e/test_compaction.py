"""The daemon compacts two thousand small files on Spark; every engine reads the same rows."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.storage.locations import table_location
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.models import LakeTable
from tests.e2e.engines import Spark, read_with_duckdb, read_with_pyiceberg
from tests.e2e.settled import until_updater_is_live
from tests.fixtures.collector import Collector
from tests.integration.astha.processes import Astha, drop_slots
from tests.lake import environment_of, iceberg_tables
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

PARTITIONS, INSERTS, ROWS = 20, 100, 5  # rows of one file
PATIENCE_S = 240.0

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30}
  metadata_orchestrator:
    tables: [tables, table_metadata]
  compactor:
    tables: [table_files, table_stats, table_delete_files]
    lane: {health_timeout_s: 30}
"""


def batch(number: int) -> pa.Table:
    ids = range(number * PARTITIONS * ROWS, (number + 1) * PARTITIONS * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([f"kind {row % PARTITIONS}" for row in ids]),
            "amount": pa.array([row * 7 % 1000 for row in ids], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def spark(scratch: Path) -> Iterator[Spark]:
    with closing(Spark(scratch)) as made:
        yield made


@pytest.fixture
def astha(postgres_url: str, lake: LakeSettings, tmp_path: Path) -> Iterator[Astha]:
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    with ExitStack() as stack:
        made = Astha(tmp_path, postgres_url, {**environment_of(lake), "ASTHA_LEASE__TTL_S": "2"})
        yield made
        for daemon in made.started:
            stack.callback(daemon.close)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        eventually_now(lambda: drop_slots(connection), "the slot is free")


async def create(store: MetadataStore, lake: LakeSettings) -> LakeTable:
    schema = parse_definition(
        {
            "columns": {"id": "long!", "kind": "string!", "amount": "long"},
            "partition_by": ["kind"],
            "sort_by": ["id"],
        }
    ).schema()
    return await store.create_table("shop", "orders", table_location(lake.warehouse, "shop", "orders"), schema.draft())


async def test_two_thousand_small_files(astha: Astha, lake: LakeSettings, spark: Spark, collector: Collector) -> None:
    """Its spans are seen too: one trace per job, with the groups that Spark has merged."""
    store = await open_store(astha.url)
    try:
        table = await create(store, lake)
        traced = {"ASTHA_TRACING__ENABLED": "true", "ASTHA_TRACING__ENDPOINT": collector.url}
        daemon = astha.run(environment=traced)
        await asyncio.to_thread(until_updater_is_live, daemon)
        around = ComponentContext(store, SystemLoopClock(), SecretStr(astha.url), lake)
        async with StorageManager(around) as manager:
            for number in range(INSERTS):
                await manager.insert("shop.orders", batch(number))

        async def compact() -> bool:
            """Compacts until no partition is worth it."""
            assert daemon.process.poll() is None
            stats = await store.get_statistics(table.id)
            busy = await store.list_compactions(statuses=["waiting", "running"])
            return not busy and all(one.file_count < 5 for one in stats)

        await eventually(compact, "few files", PATIENCE_S)
        rows = await store.list_compactions(limit=10_000)
        assert {row.status for row in rows} <= {"done", "declined", "aborted"}, rows
        (saved,) = await store.get_savings()
        current = await store.get_table_by_id(table.id)
        assert current is not None
        assert saved.input_files - saved.output_files == PARTITIONS * INSERTS - current.file_count
        verified = await asyncio.to_thread(astha, "verify", "--files", "--checksums", "--json", "--timeout", "120")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        expected = [
            (number, number * 7 % 1000) for number in range(INSERTS * PARTITIONS * ROWS)
        ]  # fmt: skip
        tables = iceberg_tables(astha.url, lake)
        loaded = await asyncio.to_thread(tables.load, table)
        assert loaded is not None
        for read in (read_with_pyiceberg, read_with_duckdb, spark.read):
            assert await asyncio.to_thread(read, loaded) == expected
        tables.close()
        operations = {known.summary.operation.value for known in loaded.metadata.snapshots if known.summary}
        assert operations <= {"append", "replace"}
        shown = await asyncio.to_thread(astha, "compaction", "savings", "--json")
        assert json.loads(shown.stdout)[0]["files_saved"] == saved.input_files - saved.output_files
        daemon.send(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.ended) == 0
        jobs = {span.span_id: span for span in collector.named("compaction")}
        assert [span.attributes["astha.status"] for span in jobs.values()].count("done") >= PARTITIONS
        groups = collector.named("merge group")
        assert {span.parent_id for span in groups} <= jobs.keys()
        assert sum(span.attributes["astha.files"] for span in groups if span.error is None) >= saved.input_files
    finally:
        await store.close()
