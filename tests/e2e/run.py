"""A lake with writers and a daemon that is killed at random, and the checks after the last restart."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pyiceberg.table import Table

from astha.clock import SystemLoopClock
from astha.subscribers.context import LakeSettings
from components.commands.verify.report import DifferenceKind
from components.commands.verify.verification import Verification, VerifyOptions
from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.storage.objects import Objects
from registry.contract import MetadataStore
from tests.e2e.engines import Rows, read_with_pyiceberg
from tests.e2e.expected_rows import ExpectedRows
from tests.e2e.settled import SETTLE_S, opened_lake, require_compacted, require_equal, until_updater_is_live
from tests.e2e.writers import Writer
from tests.integration.astha.processes import Astha
from tests.lake import environment_of
from tests.waiting import eventually

WRITERS = 4
KILLS = 3

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30, backoff_max_s: 1, breaker_reset_s: 1}
    settings: {max_snapshots: 20}
  metadata_orchestrator:
    tables: [tables, table_metadata]
    settings: {maintenance_every_s: 1}
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30, backoff_max_s: 1, breaker_reset_s: 1}
    settings:
      defaults: {snapshot.every: 3s, snapshot.keep: 3, snapshot.grace: 2s}
      check_every_s: 1
      maintenance_every_s: 1
      request_timeout_s: 20
  compactor:
    use: tests.e2e.local_compactor:create
    tables: [table_files, table_stats, table_delete_files]
    lane: {backoff_max_s: 1, breaker_reset_s: 1}
    settings: {heartbeat_s: 0.5, stale_after_s: 3, check_every_s: 0.5, defaults: {compaction.min-inputs: 4}}
"""

BEHIND = {
    DifferenceKind.NOT_COMMITTED,
    DifferenceKind.NOT_REGISTERED,
    DifferenceKind.NO_ICEBERG_TABLE,
    DifferenceKind.SCHEMA,
}

Engine = Callable[[Table], Rows]


class LakeRun:
    def __init__(self, url: str, lake: LakeSettings, directory: Path, seed: str) -> None:
        self.url, self.lake, self.directory = url, lake, directory
        self.random = random.Random(f"kills {seed}")
        self.seed = seed
        self.expected_rows = ExpectedRows()
        self.kills = self.verifications = 0
        (directory / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
        quick = {"ASTHA_LEASE__TTL_S": "3", "ASTHA_DAEMON__LEDGER_INTERVAL_S": "2"}
        """A dead daemon's lease expires soon, and its last deliveries are repeated by the next one."""
        self.astha = Astha(directory, url, {**environment_of(lake), **quick})

    async def run_with_kills(self, seconds: float) -> None:
        """Runs writers and kills the daemon at random, at least `KILLS` times, also on a slow machine."""
        enough = asyncio.Event()
        async with opened_lake(self.url, self.lake) as (store, manager, tables):
            objects = Objects(self.lake)
            writers = [
                Writer(
                    self.expected_rows, manager, store, tables, objects, self.lake.warehouse, f"{self.seed} {number}"
                )
                for number in range(WRITERS)
            ]
            writing = [asyncio.create_task(writer.run(enough)) for writer in writers]
            tasks = [
                *writing,
                asyncio.create_task(self._kill_until(enough)),
                asyncio.create_task(self._verify_until(enough, store, tables, objects)),
            ]
            try:
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                while self.kills < KILLS and not any(task.done() for task in tasks):
                    await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                enough.set()
                await asyncio.gather(*tasks)
        done, refused = dict(self.expected_rows.acknowledged), dict(self.expected_rows.refused)
        print(f"{self.kills} kills, {self.verifications} verifications; done: {done}; refused: {refused}")  # noqa: T201

    async def _kill_until(self, enough: asyncio.Event) -> None:
        """Kills the daemon, mostly while it is live, sometimes while it starts."""
        while not enough.is_set():
            daemon = self.astha.run()
            if self.random.random() < 0.8:
                await asyncio.to_thread(until_updater_is_live, daemon)
            with suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), self.random.random() * 3)
            assert daemon.process.poll() is None, f"seed {self.seed}: the daemon has ended: {daemon.lines[-20:]}"
            daemon.send(signal.SIGKILL if self.random.random() < 0.8 else signal.SIGTERM)
            await asyncio.to_thread(daemon.ended)
            self.kills += 1

    async def _verify_until(
        self, enough: asyncio.Event, store: MetadataStore, tables: IcebergTables, objects: Objects
    ) -> None:
        """Verifies that at any moment Iceberg is at most behind."""
        while not enough.is_set():
            options = VerifyOptions(files=True, checksums=self.random.random() < 0.3, timeout_s=1.0)
            report = await Verification(store, tables, objects, SystemLoopClock(), options).run()
            for table in report.tables:
                for found in table.differences:
                    harmless = found.kind in BEHIND and "has passed" not in found.cause.reason
                    assert harmless, f"seed {self.seed}: {table.table}: {found}"
            self.verifications += 1
            await asyncio.sleep(1.0)

    async def settle(self, engines: Mapping[str, Engine]) -> None:
        """Runs a daemon without kills: registry, Iceberg, storage, engines and expected rows must agree."""
        daemon = self.astha.run()
        await asyncio.to_thread(until_updater_is_live, daemon)
        await require_equal(self.astha, daemon, self.seed)
        async with opened_lake(self.url, self.lake) as (store, _, tables):
            await self._require_drops(store)
            await self._require_requests(store)
            await require_compacted(store, self.seed)
            for table in await store.list_tables():
                expected = self.expected_rows.expected(table.id)
                assert table.row_count == len(expected), f"seed {self.seed}: {table}"
                loaded = await asyncio.to_thread(tables.load, table)
                assert loaded is not None
                for name, read in {"PyIceberg": read_with_pyiceberg, **engines}.items():
                    if loaded.metadata.current_snapshot_id is None:
                        assert not expected
                        continue
                    found = await asyncio.to_thread(read, loaded)
                    assert found == expected, (
                        f"seed {self.seed}: {name} reads {table.name} differently: {_difference(found, expected)}"
                    )
        await require_equal(self.astha, daemon, self.seed)
        daemon.send(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.ended) == 0
        self._require_no_repairs()

    def _require_no_repairs(self) -> None:
        """A refresh would repair a lost or repeated transaction: requires that there was none to repair."""
        for daemon in self.astha.started:
            repairs = [line for line in daemon.lines if "is not in Iceberg's" in json.dumps(line)]
            assert not repairs, f"seed {self.seed}: {repairs}"

    async def _require_drops(self, store: MetadataStore) -> None:
        """Waits until begun drops are finished and exactly the expected tables are left."""

        async def finished() -> bool:
            return {table.id for table in await store.list_tables()} == set(self.expected_rows.tables)

        await eventually(finished, f"seed {self.seed}: exactly the expected tables", SETTLE_S)

    async def _require_requests(self, store: MetadataStore) -> None:
        async def answered() -> bool:
            rows = [
                row
                for table in self.expected_rows.tables
                for row in await store.list_snapshots(table, status="requested")
            ]
            return all(row.trigger != "manual" for row in rows)

        await eventually(answered, f"seed {self.seed}: every requested snapshot created or failed", SETTLE_S)

    def close(self) -> None:
        for daemon in self.astha.started:
            daemon.close()


def _difference(found: Rows, expected: Rows) -> str:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    return f"{len(found)} rows of {len(expected)}; missing {missing[:5]}, not expected {extra[:5]}"
