"""A daemon that is killed at any step of a compaction, on real Spark and with the real kernel: no row is lost, no file
and no process stays behind, and the next daemon goes on.

Some steps in `make test`; all of them, on both databases, in `make faults`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from astha.clock import SystemLoopClock
from astha.subscribers import LakeSettings
from components.commands.verify.verification import Verification, VerifyOptions
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from tests.e2e.settled import until_updater_is_live
from tests.faults.crash_daemon import STEP, Death
from tests.integration.astha.processes import Astha, drop_slots
from tests.integration.components.compactor.harness import Bench
from tests.lake import environment_of, files_below, iceberg_tables
from tests.parquet_files import PLAIN
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

SOME = (Death.HALF_A_FILE, Death.UPDATING)
ALL = "MINUTES" in os.environ
PATIENCE_S = 180.0
INSERTED = 5  # files before each life
AFTER_SWAP = (Death.SWAPPED, Death.TOLD, Death.UPDATING, Death.UPDATED)
UNCLAIMED = (Death.DECIDED, Death.PLANNED)

MARK = "DOOMED_RUN"
EXPIRING = {"history.expire.max-snapshot-age-ms": "1"}  # no snapshot holds what was swapped

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    use: tests.faults.crash_daemon:create_updater
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30, backoff_max_s: 1, breaker_reset_s: 1}
  metadata_orchestrator:
    tables: [tables, table_metadata]
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30}
    settings: {defaults: {snapshot.grace: 0s}, check_every_s: 1, maintenance_every_s: 1}
  compactor:
    use: tests.faults.crash_daemon:create_compactor
    tables: [table_files, table_stats, table_delete_files]
    lane: {health_timeout_s: 30}
    settings:
      heartbeat_s: 0.2
      stale_after_s: 1
      check_every_s: 0.2
      spark: {memory: 512m, options: {spark.a.secret: hidden}, environment: ["DOOMED_*"]}
"""


class Doom:
    """A table, and daemons over it, one after the other."""

    def __init__(self, bench: Bench, astha: Astha, mark: str, temporary: Path) -> None:
        self.bench, self.astha, self.mark, self.temporary = bench, astha, mark, temporary

    async def die(self, death: Death) -> None:
        """A life, from new files to its end at this step."""
        bench = self.bench
        await bench.insert(files=INSERTED)
        before, live = await bench.ids(), len(await bench.store.list_files(bench.table.id))
        daemon = self.astha.run(environment={STEP: death})
        await eventually(lambda: daemon.process.poll() is not None, f"death: {death}", PATIENCE_S)
        assert daemon.ended() == -signal.SIGKILL, daemon.lines[-20:]
        since = time.monotonic()
        await eventually(lambda: not self.processes(), f"{death}: JVM and workers end with their daemon", 60.0)
        print(f"{death}: alone after {time.monotonic() - since:.1f} s")  # noqa: T201
        assert await bench.ids() == before
        left = len(await bench.store.list_files(bench.table.id))
        assert left == (1 if death in AFTER_SWAP else live), death
        if death not in UNCLAIMED:
            (newest, *_) = await bench.store.list_compactions()
            assert newest.status == ("done" if death in AFTER_SWAP else "running")
        half = [name for name in files_below(bench.warehouse) if name.endswith(".partial")]
        assert half or death is not Death.HALF_A_FILE

    def processes(self) -> list[psutil.Process]:
        """Whatever a daemon of this test has started, and what those have."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def live(self) -> None:
        """The last one is left in peace, until all is as it should be."""
        bench = self.bench
        daemon = self.astha.run()
        await asyncio.to_thread(until_updater_is_live, daemon)
        await bench.insert(files=INSERTED)
        before = await bench.ids()

        async def compact() -> bool:
            assert daemon.process.poll() is None, daemon.lines[-20:]
            busy = await bench.store.list_compactions(statuses=["waiting", "running"])
            return not busy and len(await bench.store.list_files(bench.table.id)) == 1

        async def only_live() -> bool:
            """What was swapped is removed, since no snapshot needs it."""
            return not await bench.store.list_files_awaiting_deletion(table_id=bench.table.id)

        await eventually(compact, "one file", PATIENCE_S)
        assert await bench.ids() == before
        await self.require_equal()
        await bench.insert()  # with whose commit the snapshot before the swap expires
        await eventually(only_live, "files that were swapped are deleted", 60.0)
        daemon.send(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.ended) == 0
        assert not self.processes()

    async def require_equal(self) -> None:
        tables = iceberg_tables(self.astha.url, self.bench.lake)
        try:
            options = VerifyOptions(files=True, checksums=True)
            objects = Objects(self.bench.lake)
            report = await Verification(self.bench.store, tables, objects, SystemLoopClock(), options).run()
            assert report.equal, report
        finally:
            tables.close()

    async def require_nothing_left(self) -> None:
        bench = self.bench
        await clean_intents(bench.store, Objects(bench.lake), 0, "cleaner")
        await bench.require_tidy()
        live = {file.file_path for file in await bench.store.list_files(bench.table.id)}
        assert files_below(bench.warehouse / bench.table.name / "data") == live
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def astha(url: str, lake: LakeSettings, tmp_path: Path) -> Iterator[Astha]:
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"ASTHA_LEASE__TTL_S": "2", "TMPDIR": str(temporary), MARK: uuid4().hex}
    made = Astha(tmp_path, url, {**environment_of(lake), **environment})
    yield made
    for daemon in made.started:
        daemon.close()
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"] if ALL else ["postgres"], indirect=True)
async def test_killed_at_a_step(url: str, astha: Astha, warehouse: Path, tmp_path: Path) -> None:
    """In one test: each daemon finds what the one before it has left."""
    store = await open_store(url)
    try:
        bench = Bench(store, warehouse)
        await bench.create("orders", PLAIN, **EXPIRING)
        doom = Doom(bench, astha, astha.environment[MARK], tmp_path / "temporary")
        for death in Death if ALL else SOME:
            await doom.die(death)
        await doom.live()
        await doom.require_nothing_left()
    finally:
        await store.close()
