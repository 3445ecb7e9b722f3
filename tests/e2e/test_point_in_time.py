"""A drill: PostgreSQL is restored to a point in time, from a base backup and archived WAL (docs/operations/restore.md).

What was committed after the point never happened: the Iceberg tables, a consumer of the Kafka topics, and a follower
have seen it, and give it up. The daemons are stopped meanwhile, or run on and find another history at the same address.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from tests.e2e.settled import until_updater_is_live
from tests.e2e.test_restore import COMMITS, copy_files
from tests.fixtures.daemons import rows_of
from tests.fixtures.databases import SERVER_SETTINGS
from tests.fixtures.servers import MakeServer, ask, base_backup
from tests.integration.astha.processes import TOKEN, Astha, Daemon
from tests.kafka_reader import materialised
from tests.lake import SIMPLE, create_table, environment_of, table_schema
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.long  # `make faults` runs it

POINT = "before_the_mistake"
TABLES = frozenset({"tables", "table_metadata", "table_files", "consumer_groups"})
SETTLE_S = 120.0

LEADER = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files]
    lane: {{delivery_timeout_s: 60, health_timeout_s: 30, breaker_reset_s: 1}}
  metadata_orchestrator: {{tables: [tables, table_metadata]}}
  snapshotter: {{tables: [table_metadata, table_files, table_snapshots]}}
  kafka_sink:
    tables: [{tables}]
    lane: {{health_timeout_s: 30, breaker_reset_s: 1}}
    settings: {{bootstrap_servers: "{broker}", prefix: {prefix}}}
  kafka_transactions:
    use: components.kafka_sink:create
    tables: [{tables}]
    lane: {{health_timeout_s: 30, breaker_reset_s: 1}}
    settings: {{bootstrap_servers: "{broker}", prefix: {prefix}, layout: transactions, heartbeat_s: 0.5}}
"""
FOLLOWER = """
components:
  kafka_sink:
    tables: [{tables}]
    lane: {{health_timeout_s: 30, breaker_reset_s: 1}}
    settings: {{bootstrap_servers: "{broker}", prefix: {prefix}-follower}}
"""


class ArchivedServer:
    """A PostgreSQL server that archives its WAL. The restored one takes its address."""

    def __init__(self, make_server: MakeServer, directory: Path) -> None:
        self._archive, self._backup, self._directory = directory / "wal", directory / "base", directory / "restored"
        self._archive.mkdir(parents=True)
        self._settings = {
            "archive_mode": "on",
            "archive_command": f"test ! -f {self._archive}/%f && cp %p {self._archive}/%f",
        }
        self.server: EmbeddedPostgres = make_server({**self._settings, "full_page_writes": "on"})
        self.server.hand_over(directory)

    def back_up(self) -> None:
        base_backup(self.server, self._backup)

    def crash(self) -> None:
        """All WAL is archived, also what was written after the point."""
        file = ask(self.server, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        ask(self.server, "SELECT pg_switch_wal()")
        eventually_now((self._archive / file).exists, "the archive has the last WAL", SETTLE_S)
        self.server.kill()

    def restore(self) -> EmbeddedPostgres:
        """Returns a server that recovers to the point when it starts, and is promoted then."""
        restored = EmbeddedPostgres(self._directory, {**SERVER_SETTINGS, **self._settings})
        restored.port = self.server.port
        shutil.copytree(self._backup, restored.data)
        restored.data.chmod(0o700)
        with (restored.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"restore_command = 'cp {self._archive}/%f %p'\n")
            file.write(f"recovery_target_name = '{POINT}'\nrecovery_target_action = 'promote'\n")
        (restored.data / "recovery.signal").touch()
        restored.hand_over(self._directory)
        return restored


class Site:
    """A leader and a follower, with all that they write."""

    def __init__(self, url: str, lake: LakeSettings, directory: Path, broker: str, prefix: str) -> None:
        self.url, self.lake, self.broker, self.prefix = url, lake, broker, prefix
        named = {"broker": broker, "prefix": prefix, "tables": ", ".join(sorted(TABLES))}
        quick = {**environment_of(lake), "ASTHA_LEASE__TTL_S": "3", "ASTHA_SERVER__TOKEN": TOKEN}
        follows = {"ASTHA_GROUP": "remote", "ASTHA_SOURCE__URL": f"kafka://{broker}/{prefix}.transactions"}
        self.leading = self._astha(directory / "leader", LEADER.format(**named), quick)
        self.following = self._astha(directory / "follower", FOLLOWER.format(**named), quick | follows)

    def _astha(self, directory: Path, subscriptions: str, environment: dict[str, str]) -> Astha:
        directory.mkdir()
        (directory / "subscriptions.yaml").write_text(subscriptions)
        return Astha(directory, self.url, environment)

    def start(self) -> list[Daemon]:
        leader = self.leading.run()
        until_updater_is_live(leader)
        leader.until_ready()  # before the follower looks for the topic
        follower = self.following.run()
        follower.until_ready()
        return [leader, follower]

    def stop(self, daemons: list[Daemon]) -> None:
        for daemon in reversed(daemons):
            daemon.send(signal.SIGTERM)
            assert daemon.ended() == 0

    def close(self) -> None:
        for daemon in (*self.leading.started, *self.following.started):
            daemon.close()

    async def insert(self, store: MetadataStore, first: int, count: int) -> None:
        context = ComponentContext(store, SystemLoopClock(), SecretStr(self.url), self.lake)
        async with StorageManager(context) as manager:
            for number in range(first, first + count):
                await manager.insert("shop.orders", [{"id": number, "name": "n", "day": None}], sync=True)

    async def converged(self, store: MetadataStore) -> None:
        """Waits until consumers of both daemons' topics hold exactly the rows of the registry."""

        async def equal() -> bool:
            wanted = await rows_of(store, TABLES)
            own = await asyncio.to_thread(materialised, self.broker, self.prefix, TABLES)
            followed = await asyncio.to_thread(materialised, self.broker, f"{self.prefix}-follower", TABLES)
            return own == wanted == followed

        await eventually(equal, "the topics hold the rows of the registry", SETTLE_S)

    async def verify(self) -> int:
        """Returns the number of rows, if registry, Iceberg and files agree."""

        def verified() -> int | None:
            done = self.leading("verify", "--files", "--checksums", "--json", "--timeout", "50")
            return sum(table["rows"] for table in json.loads(done.stdout)["tables"]) if done.returncode == 0 else None

        found: list[int] = []

        async def equal() -> bool:
            rows = await asyncio.to_thread(verified)
            found.extend([] if rows is None else [rows])
            return bool(found)

        await eventually(equal, "registry, Iceberg and files agree", SETTLE_S)
        return found[-1]


@pytest.fixture
def archived(make_server: MakeServer, scratch: Path, topic_prefix: str) -> ArchivedServer:
    return ArchivedServer(make_server, scratch / f"archived-{topic_prefix}")


@pytest.fixture
def site(
    archived: ArchivedServer, lake: LakeSettings, tmp_path: Path, kafka: KafkaBroker, topic_prefix: str
) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(archived.server.url("postgres"), lake, tmp_path, kafka.address, topic_prefix)
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
async def test_everything_agrees_with_the_point_in_time(
    archived: ArchivedServer, site: Site, warehouse: Path, tmp_path: Path, running: bool
) -> None:
    store = await open_store(site.url)
    try:
        await create_table(store, warehouse, schema=table_schema(SIMPLE))
        daemons = await asyncio.to_thread(site.start)
        await store.ensure_consumer_group("kept")
        await site.insert(store, 0, 3)
        await asyncio.to_thread(archived.back_up)
        await site.insert(store, 3, 2)  # only in the archived WAL
        await asyncio.to_thread(ask, archived.server, "SELECT pg_create_restore_point(%s)", POINT)
        await asyncio.to_thread(copy_files, warehouse, tmp_path / "files")
        await store.delete_consumer_group("kept")
        await store.ensure_consumer_group("lost")
        await site.insert(store, 100, COMMITS)
        await site.converged(store)
        assert await site.verify() == 5 + COMMITS
    finally:
        await store.close()

    if not running:
        await asyncio.to_thread(site.stop, daemons)
    await asyncio.to_thread(archived.crash)
    await asyncio.to_thread(copy_files, tmp_path / "files", warehouse)
    with archived.restore() as restored:
        promoted = "SELECT NOT pg_is_in_recovery()"
        await eventually(lambda: bool(ask(restored, promoted)), "the end of the recovery", SETTLE_S)
        assert ask(restored, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)") == "00000002", "the timeline"
        if not running:
            assert ask(restored, "SELECT count(*) FROM pg_replication_slots") == 0
            daemons = await asyncio.to_thread(site.start)
        store = await open_store(site.url)
        try:
            await site.converged(store)
            assert await site.verify() == 5
            await store.ensure_consumer_group("new")
            await site.insert(store, 200, 1)
            await site.converged(store)
            assert await site.verify() == 6
        finally:
            await store.close()
        slots = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = 'postgres'"
        assert ask(restored, slots) == 1
        await asyncio.to_thread(site.stop, daemons)
