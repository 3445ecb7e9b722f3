"""The catalog's oracle: several engines write the same tables while catalogs and daemon are killed at random.

In the end registry and Iceberg are equal, and every acknowledged row is read once by every engine.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from astha.subscribers.context import LakeSettings
from components.lib.lake.schema.table_definition import parse_definition
from components.lib.lake.storage.locations import table_location
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from registry.models import LakeTable
from tests.e2e.engines import Rows
from tests.e2e.run import SUBSCRIPTIONS
from tests.e2e.settled import SETTLE_S, opened_lake, require_compacted, require_equal, until_updater_is_live
from tests.faults.engine_clients import PyIcebergClient, SparkClient, read_with_duckdb
from tests.faults.engine_writers import Account, EngineWriter, InsertWriter, RollbackWriter, Writer
from tests.integration.astha.processes import Astha, Daemon
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.lake import environment_of
from tests.servers.catalog_process import CatalogProcess
from tests.waiting import eventually

NAMESPACE = "shop"
KILLS = 3
LONGEST_S = 600.0
"""Most seconds beyond the run's own, until everything was seen that a run must see."""

CHANGES = ("delete", "update", "merge")
COLUMNS = ["id: long!", "kind: string", "amount: int", "note: string"]
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))

Read = Callable[[str], Rows]


class CatalogOracle:
    """`catalogs`: processes that serve the registry at the same time."""

    def __init__(self, url: str, lake: LakeSettings, directory: Path, seed: str, catalogs: int = 2) -> None:
        self.url, self.lake, self.directory, self.seed = url, lake, directory, seed
        self.random = random.Random(f"kills {seed}")
        self.struck: Counter[str] = Counter()
        self.catalogs = [CatalogProcess(directory, url, lake.warehouse) for _ in range(catalogs)]
        self.client = PyIcebergClient([catalog.uri for catalog in self.catalogs], f"uris {seed}")
        (directory / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
        quick = {"ASTHA_LEASE__TTL_S": "3", "ASTHA_DAEMON__LEDGER_INTERVAL_S": "2"}
        self.astha = Astha(directory, url, {**environment_of(lake), **quick})

    async def run(self, seconds: float, *, spark: Callable[[str], Spark] | None = None) -> None:
        """Kills catalogs and daemon at random, at least `KILLS` times each, also on a slow machine.

        `spark` starts a session with the catalog at a URI.
        """
        await self._start_catalogs()
        session = None if spark is None else await asyncio.to_thread(spark, self.catalogs[0].uri)
        async with opened_lake(self.url, self.lake) as (store, manager, tables):
            account = Account(await self._create_tables(store, merge_on_read=session is not None))
            daemon = await self._started_daemon(account)
            writers = self._writers(account, manager)
            writers.append(RollbackWriter(account, self.seed, self.client, store, tables, Objects(self.lake)))
            engines = self._engines()
            if session is not None:
                engine = SparkClient(session)
                engines["Spark"] = engine.read
                writers.append(EngineWriter("spark", account, self.seed, engine))
            enough = asyncio.Event()
            tasks = [
                *(asyncio.create_task(writer.run(enough)) for writer in writers),
                asyncio.create_task(self._kill_daemons(enough, daemon)),
                asyncio.create_task(self._kill_catalogs(enough)),
            ]
            end = time.monotonic() + seconds + LONGEST_S
            try:
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                while self._unseen(account, engines) and not any(task.done() for task in tasks):
                    await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
                    if time.monotonic() > end:
                        break
            finally:
                enough.set()
                await asyncio.gather(*tasks)
            self._tell(account)
            await self._settle(store, account, engines, self.astha.run())
            assert not self._unseen(account, engines), f"seed {self.seed}: not seen: {self._unseen(account, engines)}"

    async def run_briefly(self, commits: int) -> None:
        """Kills one catalog, once, in the middle. `commits`: how many of them engines do at least."""
        await self._start_catalogs()
        async with opened_lake(self.url, self.lake) as (store, manager, _):
            account = Account(await self._create_tables(store, merge_on_read=False))
            daemon = await self._started_daemon(account)
            enough = asyncio.Event()
            tasks = [asyncio.create_task(writer.run(enough)) for writer in self._writers(account, manager)]
            try:
                await eventually(
                    lambda: account.commits_of("pyiceberg") >= commits // 2, "commits of engines", SETTLE_S
                )
                self.catalogs[0].kill()
                await asyncio.to_thread(self.catalogs[0].start)
                await eventually(
                    lambda: account.commits_of("pyiceberg") >= commits, "more commits of engines", SETTLE_S
                )
            finally:
                enough.set()
                await asyncio.gather(*tasks)
            self._tell(account)
            await self._settle(store, account, self._engines(), daemon)
            self._require_no_repairs()

    async def _start_catalogs(self) -> None:
        for catalog in self.catalogs:
            await asyncio.to_thread(catalog.start)

    async def _started_daemon(self, account: Account) -> Daemon:
        """Returns when it has created the Iceberg tables of the registry's own tables."""
        daemon = self.astha.run()
        await eventually(partial(_are_served, self.client, list(account.tables)), "all tables are served", SETTLE_S)
        return daemon

    def _writers(self, account: Account, manager: StorageManager) -> list[Writer]:
        return [
            *(InsertWriter(f"insert {number}", account, self.seed, manager) for number in range(2)),
            *(EngineWriter(f"pyiceberg {number}", account, self.seed, self.client) for number in range(2)),
        ]

    def _engines(self) -> dict[str, Read]:
        return {"PyIceberg": self.client.read, "DuckDB": partial(read_with_duckdb, self.catalogs[-1].uri)}

    def _tell(self, account: Account) -> None:
        print(f"kills {dict(self.struck)}; {dict(sorted(account.done.items()))}")  # noqa: T201
        print("\n".join(f"{what}: {reason}" for what, reason in account.reasons.items()))  # noqa: T201

    def _unseen(self, account: Account, engines: Mapping[str, Read]) -> list[str]:
        """Returns what a run must see and this one has not: kills, and commits of Spark that were acknowledged."""
        wanted = {f"kills of {name}": self.struck[name] >= KILLS for name in ("catalog", "daemon")}
        if "Spark" in engines:
            wanted["commits by Spark"] = account.commits_of("spark") >= KILLS
            wanted["a MERGE by Spark"] = account.done["spark overwrite"] >= 1
        return [what for what, seen in wanted.items() if not seen]

    async def _kill_daemons(self, enough: asyncio.Event, daemon: Daemon) -> None:
        """Kills the daemon, mostly while it is live, sometimes while it starts."""
        while True:
            if self.random.random() < 0.8:
                await asyncio.to_thread(until_updater_is_live, daemon)
            await _pause(enough, self.random.random() * 6)
            assert daemon.process.poll() is None, f"seed {self.seed}: the daemon has ended: {daemon.lines[-20:]}"
            daemon.send(signal.SIGKILL if self.random.random() < 0.8 else signal.SIGTERM)
            await asyncio.to_thread(daemon.ended)
            self.struck["daemon"] += 1
            if enough.is_set():
                return
            daemon = self.astha.run()

    async def _kill_catalogs(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            await _pause(enough, self.random.random() * 5)
            first, *others = self.catalogs
            catalog = self.random.choice([first, *others * 4])  # Spark has only the first, and is slow
            if self.random.random() < 0.2:
                await asyncio.to_thread(catalog.stop)
            else:
                catalog.kill()
            await asyncio.to_thread(catalog.start)
            self.struck["catalog"] += 1

    async def _settle(self, store: MetadataStore, account: Account, engines: dict[str, Read], daemon: Daemon) -> None:
        """With a daemon that is not killed: registry, Iceberg, storage, engines and acknowledged rows must agree."""
        await asyncio.to_thread(until_updater_is_live, daemon)
        await require_compacted(store, self.seed)
        await require_equal(self.astha, daemon, self.seed)
        for name, table in account.tables.items():
            found = {engine: await asyncio.to_thread(read, name) for engine, read in engines.items()}
            for engine, rows in found.items():
                wrong = account.rows[name].difference(rows)
                assert wrong is None, f"seed {self.seed}: {engine} reads {name} differently: {wrong}"
            assert len(set(map(str, found.values()))) == 1, f"seed {self.seed}: engines read {name} differently"
            now = await store.get_table_by_id(table.id)
            files = await store.list_files(table.id, limit=1_000_000)
            assert now is not None
            assert now.row_count == sum(file.row_count for file in files), f"seed {self.seed}: {now}"
            if not await store.list_delete_files(table.id):
                assert now.row_count == len(found["PyIceberg"]), f"seed {self.seed}: {now}"
        daemon.send(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.ended) == 0

    def _require_no_repairs(self) -> None:
        """A refresh would repair a lost or repeated transaction: requires that there was none to repair.

        Not with rollbacks: a file that the registry removes and restores may meanwhile be rewritten by an engine.
        """
        for daemon in self.astha.started:
            repairs = [line for line in daemon.lines if "is not in Iceberg's" in json.dumps(line)]
            assert not repairs, f"seed {self.seed}: {repairs}"

    async def _create_tables(self, store: MetadataStore, *, merge_on_read: bool) -> dict[str, LakeTable]:
        """Two of the registry's own, and two or three of the catalog's, of each kind partitioned or not."""
        content = {"columns": [dict([column.split(": ")]) for column in COLUMNS]}
        for name, partitioned in (("own", []), ("own_by_kind", ["kind"])):
            draft = parse_definition({**content, "partition_by": partitioned}).schema().draft()
            await store.create_table(NAMESPACE, name, table_location(self.lake.warehouse, NAMESPACE, name), draft)
        schema = parse_definition(content).schema().iceberg
        # By default every append of another writer refuses Spark's MERGE. Rows belong to one writer, so this is sound.
        levels = {f"write.{change}.isolation-level": "snapshot" for change in CHANGES}
        made: dict[str, dict[str, Any]] = {
            "engine": {"properties": levels},
            "engine_by_kind": {"partition_spec": BY_KIND, "properties": levels},
        }
        if merge_on_read:
            modes = {f"write.{change}.mode": "merge-on-read" for change in CHANGES}
            made["merged"] = {"properties": {**levels, **modes}}
        catalog = RestCatalog("lake", uri=self.catalogs[0].uri)
        await asyncio.to_thread(catalog.create_namespace_if_not_exists, NAMESPACE)
        for name, options in made.items():
            await asyncio.to_thread(partial(catalog.create_table, f"{NAMESPACE}.{name}", schema, **options))
        return {f"{NAMESPACE}.{table.name}": table for table in await store.list_tables()}

    def close(self) -> None:
        for daemon in self.astha.started:
            daemon.close()
        for catalog in self.catalogs:
            catalog.kill()


async def _are_served(client: PyIcebergClient, names: Sequence[str]) -> bool:
    try:
        for name in names:
            await asyncio.to_thread(client.load, name)
    except NoSuchTableError:
        return False
    return True


async def _pause(enough: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(enough.wait(), seconds)
