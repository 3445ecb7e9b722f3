"""Restore drills as docs/operations describes them: registry and warehouse are saved while writers and a daemon work.

Then the backup is restored over the same place, which has gone on since, and into a new database with a copy of the
warehouse. Both times a daemon makes everything agree with what the backup holds, and `astha verify` proves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from astha.client import Refused
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import MetadataStore
from tests.e2e.settled import until_updater_is_live
from tests.fixtures.databases import MakeDatabase
from tests.integration.astha.processes import TOKEN, Astha, Daemon, Finished, drop_slots
from tests.integration.operations.backups import dump, restore
from tests.lake import SIMPLE, create_table, environment_of, execute_sql, table_schema
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

SUBSCRIPTIONS = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
    lane: {delivery_timeout_s: 60, health_timeout_s: 30}
  metadata_orchestrator: {tables: [tables, table_metadata]}
  snapshotter: {tables: [table_metadata, table_files, table_snapshots]}
"""
COMMITTERS = ("iceberg_updater", "snapshotter")
COMMITS = 25
"""More than the metadata files that Iceberg keeps: the one that the backup names is deleted meanwhile."""


def copy_files(source: Path, target: Path) -> None:
    """Adds what the target lacks, as ``rsync -a --ignore-existing``; files may vanish meanwhile."""
    for path in source.rglob("*"):
        to = target / path.relative_to(source)
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)


@pytest.fixture
def astha(url: str, lake: LakeSettings, tmp_path: Path) -> Iterator[Astha]:
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    quick = {"ASTHA_LEASE__TTL_S": "3", "ASTHA_SERVER__TOKEN": TOKEN}
    command = Astha(tmp_path, url, {**environment_of(lake), **quick})
    yield command
    for daemon in command.started:
        daemon.close()


def release(url: str) -> None:
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


async def rows_in(url: str) -> int:
    store = await open_store(url)
    try:
        return sum(table.row_count for table in await store.list_tables())
    finally:
        await store.close()


def resume(daemon: Daemon) -> None:
    """The components were paused during the backup, and the ledger in it may say so."""

    def live() -> bool:
        for name in COMMITTERS:
            with contextlib.suppress(Refused):
                daemon.client(TOKEN).post(f"/components/{name}/resume")
        states = {found["name"]: found["state"] for found in daemon.client(TOKEN).get("/status")["components"]}
        return all(states[name] == "live" for name in COMMITTERS)

    eventually_now(live, "live components", 60)


async def require_equal(astha: Astha, url: str, rows: int) -> None:
    """Starts a daemon on the restored registry; it refreshes, and registry, Iceberg and files agree."""
    at = {"ASTHA_REGISTRY": url}
    daemon = await asyncio.to_thread(lambda: astha.run(environment=at))
    await asyncio.to_thread(resume, daemon)
    done = await asyncio.to_thread(
        lambda: astha("verify", "--files", "--checksums", "--json", "--timeout", "50", environment=at)
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    report = json.loads(done.stdout)
    assert report["equal"]
    assert sum(table["rows"] for table in report["tables"]) == rows
    daemon.send(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.ended) == 0


async def insert_until(manager: StorageManager, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        number += 1
        await manager.insert("shop.orders", [{"id": number, "name": "n", "day": None}], sync=True)
        await asyncio.sleep(0.02)


async def test_a_backup_is_restored_over_the_registry_and_into_a_new_one(
    url: str, store: MetadataStore, context: ComponentContext, astha: Astha, new_database: MakeDatabase,
    warehouse: Path, tmp_path: Path,
) -> None:  # fmt: skip
    await create_table(store, warehouse, schema=table_schema(SIMPLE))
    daemon = await asyncio.to_thread(astha.run)
    await asyncio.to_thread(until_updater_is_live, daemon)
    client, enough = daemon.client(TOKEN), asyncio.Event()

    async def commits() -> int:
        status = await asyncio.to_thread(lambda: list(warehouse.rglob("*.metadata.json")))
        return max((int(path.name.split("-")[0]) for path in status), default=0)

    async with StorageManager(context) as manager:
        writing = asyncio.create_task(insert_until(manager, enough))
        await eventually(lambda: _more(commits, 3), "some commits", 60)
        for name in COMMITTERS:
            await asyncio.to_thread(client.post, f"/components/{name}/pause")
        await asyncio.to_thread(dump, url, tmp_path / "backup")
        await asyncio.to_thread(copy_files, warehouse, tmp_path / "files")
        saved = await commits()
        for name in COMMITTERS:
            await asyncio.to_thread(client.post, f"/components/{name}/resume")
        await eventually(lambda: _more(commits, saved + COMMITS), "many commits after the backup", 60)
        enough.set()
        await writing
    daemon.send(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.ended) == 0
    written = await rows_in(url)
    await store.close()

    await asyncio.to_thread(restore, tmp_path / "backup", url)
    await asyncio.to_thread(copy_files, tmp_path / "files", warehouse)
    held = await rows_in(url)
    assert 0 < held < written
    await require_equal(astha, url, held)
    await asyncio.to_thread(release, url)

    elsewhere = new_database()
    await asyncio.to_thread(restore, tmp_path / "backup", elsewhere)
    shutil.rmtree(warehouse)  # the machine is gone; locations are absolute, so the copy takes its place
    await asyncio.to_thread(copy_files, tmp_path / "files", warehouse)
    await require_equal(astha, elsewhere, held)
    await asyncio.to_thread(release, elsewhere)


async def _more(commits: Callable[[], Awaitable[int]], than: int) -> bool:
    return await commits() > than


@pytest.mark.long
async def test_a_table_whose_metadata_files_are_lost_is_created_again(
    url: str, store: MetadataStore, context: ComponentContext, astha: Astha, warehouse: Path
) -> None:
    """As after a backup without the pause, or of the registry alone. `make faults` runs it."""
    await create_table(store, warehouse, schema=table_schema(SIMPLE))
    daemon = await asyncio.to_thread(astha.run)
    await asyncio.to_thread(until_updater_is_live, daemon)
    async with StorageManager(context) as manager:
        for number in range(3):
            await manager.insert("shop.orders", [{"id": number, "name": "n", "day": None}], sync=True)
    assert (await verified(astha, "--timeout", "50")).returncode == 0
    daemon.send(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.ended) == 0
    await asyncio.to_thread(lose_metadata, warehouse)

    daemon = await asyncio.to_thread(astha.run)
    await asyncio.to_thread(until_updater_is_live, daemon)
    broken = await verified(astha, "--timeout", "2")
    assert broken.returncode == 1, f"{broken.stdout}{broken.stderr}"
    assert "shop.orders" in broken.stdout
    await asyncio.to_thread(execute_sql, url, "DELETE FROM iceberg_tables WHERE table_name = 'orders'")
    await asyncio.to_thread(daemon.client(TOKEN).post, "/components/iceberg_updater/refresh")
    again = await verified(astha, "--files", "--timeout", "50")
    assert again.returncode == 0, f"{again.stdout}{again.stderr}"
    assert await rows_in(url) == 3
    daemon.send(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.ended) == 0
    await asyncio.to_thread(release, url)


def lose_metadata(warehouse: Path) -> None:
    for path in warehouse.rglob("*.metadata.json"):
        path.unlink()


async def verified(astha: Astha, *options: str) -> Finished:
    return await asyncio.to_thread(lambda: astha("verify", *options))
