"""A leader with the Iceberg updater, and a follower over Kafka with the compactor on Spark; both are killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
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
from tests.e2e.engines import read_with_duckdb, read_with_pyiceberg
from tests.e2e.settled import until_updater_is_live
from tests.integration.astha.processes import Astha, Daemon, drop_slots
from tests.lake import environment_of, iceberg_tables
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

INSERTS, ROWS = 12, 5  # of each round: enough small files for a compaction
SETTLE_S = 240.0
GROUP = "workers"

LEADER = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {{delivery_timeout_s: 60, health_timeout_s: 30, breaker_reset_s: 1}}
  metadata_orchestrator:
    tables: [tables, table_metadata]
  kafka_sink:
    tables: [tables, table_metadata, table_files, table_stats, table_delete_files]
    lane: {{health_timeout_s: 10, breaker_reset_s: 1}}
    settings: {{bootstrap_servers: "{broker}", layout: transactions, prefix: {prefix}}}
"""

FOLLOWER = """
components:
  compactor:
    tables: [table_files, table_stats, table_delete_files]
    lane: {health_timeout_s: 30, breaker_reset_s: 1}
    settings: {heartbeat_s: 0.5, stale_after_s: 3, check_every_s: 0.5, defaults: {compaction.min-inputs: 4}}
"""


class TwoDaemons:
    def __init__(self, url: str, lake: LakeSettings, directory: Path, broker: str, prefix: str) -> None:
        quick = {**environment_of(lake), "ASTHA_LEASE__TTL_S": "2"}
        follows = {"ASTHA_GROUP": GROUP, "ASTHA_SOURCE__URL": f"kafka://{broker}/{prefix}.transactions"}
        self.leading = self._astha(directory / "leader", url, LEADER.format(broker=broker, prefix=prefix), quick)
        self.following = self._astha(directory / "follower", url, FOLLOWER, quick | follows)

    @staticmethod
    def _astha(directory: Path, url: str, subscriptions: str, environment: dict[str, str]) -> Astha:
        directory.mkdir()
        (directory / "subscriptions.yaml").write_text(subscriptions)
        return Astha(directory, url, environment)

    def start(self) -> tuple[Daemon, Daemon]:
        return self.leading.run(), self.following.run()

    def close(self) -> None:
        for daemon in (*self.leading.started, *self.following.started):
            daemon.close()


@pytest.fixture
def daemons(
    url: str, lake: LakeSettings, tmp_path: Path, kafka: KafkaBroker, topic_prefix: str
) -> Iterator[TwoDaemons]:
    with ExitStack() as stack:
        made = TwoDaemons(url, lake, tmp_path, kafka.address, topic_prefix)
        stack.callback(made.close)
        yield made
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


async def insert(store: MetadataStore, url: str, lake: LakeSettings, first: int) -> None:
    """Each insert is a file of its own."""
    context = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
    async with StorageManager(context) as manager:
        for number in range(first, first + INSERTS):
            ids = range(number * ROWS, (number + 1) * ROWS)
            rows = {
                "id": pa.array(ids, pa.int64()),
                "kind": pa.array(["a kind"] * ROWS),
                "amount": pa.array([row * 7 % 1000 for row in ids], pa.int64()),
            }
            await manager.insert("shop.orders", pa.table(rows))


@pytest.mark.parametrize("backend", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"], indirect=True)
async def test_compaction_by_a_follower(daemons: TwoDaemons, url: str, lake: LakeSettings) -> None:
    store = await open_store(url)
    leader, follower = daemons.start()

    async def compacted(times: int) -> bool:
        for daemon in (leader, follower):
            assert daemon.process.poll() is None, daemon.lines[-20:]
        done = await store.list_compactions(statuses=["done"])
        running = await store.list_compactions(statuses=["waiting", "running"])
        stats = await store.get_statistics(table.id)
        return len(done) >= times and not running and all(one.file_count < 4 for one in stats)

    try:
        schema = parse_definition({"columns": {"id": "long!", "kind": "string!", "amount": "long"}}).schema()
        location = table_location(lake.warehouse, "shop", "orders")
        table = await store.create_table("shop", "orders", location, schema.draft())
        await asyncio.to_thread(until_updater_is_live, leader)
        await insert(store, url, lake, 0)
        await eventually(lambda: compacted(1), "a compaction by the follower", SETTLE_S)
        follower.send(signal.SIGKILL)
        await asyncio.to_thread(follower.ended)
        await insert(store, url, lake, INSERTS)
        follower = daemons.following.run()
        await eventually(lambda: compacted(2), "a compaction after the follower was killed", SETTLE_S)
        leader.send(signal.SIGKILL)
        await asyncio.to_thread(leader.ended)
        await insert(store, url, lake, 2 * INSERTS)
        leader = daemons.leading.run()
        await eventually(lambda: compacted(3), "a compaction after the leader was killed", SETTLE_S)
        verify = ("verify", "--files", "--checksums", "--json", "--timeout", "120")
        verified = await asyncio.to_thread(daemons.leading, *verify)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        expected = [(number, number * 7 % 1000) for number in range(3 * INSERTS * ROWS)]
        tables = iceberg_tables(url, lake)
        loaded = await asyncio.to_thread(tables.load, table)
        tables.close()
        assert loaded is not None
        for read in (read_with_pyiceberg, read_with_duckdb):
            assert await asyncio.to_thread(read, loaded) == expected
        for daemon in (leader, follower):
            daemon.send(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.ended) == 0
    finally:
        await store.close()
