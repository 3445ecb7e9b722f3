"""Another SQLite file in the registry's place, under a running daemon: everything moves to it, nothing is mixed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from astha.server.health import readiness
from astha.subscribers import LakeSettings
from astha.testing import RecordingSubscriber
from components.lib.lake.iceberg import open_catalog
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.errors import Unavailable
from registry.migrate import migrate
from tests.fixtures.daemons import RunDaemon, Running

GROUPS = "consumer_groups"
LEASE_S = 2.0  # its end is part of these tests


class Starting(RecordingSubscriber):
    """Counts its starts, in which a component would read the registry's identity and open its catalog."""

    starts = 0

    async def start(self) -> None:
        self.starts += 1


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return sqlite_path(parse_url(sqlite_url))


def backup(path: Path) -> Path:
    to = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(to)) as new:
        old.backup(new)
        new.execute("PRAGMA journal_mode = DELETE")
    return to


def groups(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT group_id FROM consumer_groups")}


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def holds_the_lease(running: Running, store: MetadataStore) -> bool:
    lease, leadership = await store.get_daemon_lease("astha"), running.daemon.leadership
    return lease is not None and leadership.leads and lease.epoch == leadership.lease.epoch


async def follows(running: Running, store: MetadataStore, group: str) -> None:
    """A change of the file that is there now reaches the component, and the lease is in that file."""
    await store.ensure_consumer_group(group)
    await running.until(lambda: holds_the_lease(running, store), "leading by a lease in the new file")
    await running.live()
    await running.agree(store)


async def test_a_daemon_moves_to_a_file_that_replaces_the_registry(
    sqlite_url: str, path: Path, run_daemon: RunDaemon
) -> None:
    component = Starting(GROUPS)
    running = await run_daemon(sqlite_url, {"groups": component}, lease_s=LEASE_S)
    await running.live()
    before = await open_store(sqlite_url)
    try:
        await before.ensure_consumer_group("kept")
        saved = backup(path)
        with closing(sqlite3.connect(saved)) as connection:
            connection.execute("DELETE FROM consumer_groups")
            connection.commit()
        await before.ensure_consumer_group("lost")
        await running.agree(before)
        refreshes, starts = component.refreshes, component.starts
        saved.rename(path)
        await running.until(lambda: component.refreshes > refreshes, "a refresh")
        # The write-ahead log of the old file must not be replayed into the new one.
        await follows(running, before, "new")
        assert groups(path) == {"new"}
        assert component.starts > starts, "it opens its catalog again"
        assert list(path.parent.glob("registry.db-wal.of-*")), "the old log is kept aside"
        await running.stop()
    finally:
        await before.close()


async def test_a_daemon_continues_with_a_registry_that_was_removed_and_created_again(
    sqlite_url: str, path: Path, run_daemon: RunDaemon
) -> None:
    component = RecordingSubscriber(GROUPS)
    running = await run_daemon(sqlite_url, {"groups": component}, lease_s=LEASE_S)
    await running.live()
    store = await open_store(sqlite_url)
    try:
        await store.ensure_consumer_group("old")
        await running.agree(store)
        remove(path)
        await asyncio.to_thread(migrate, sqlite_url)
        await follows(running, store, "new")
        assert groups(path) == {"new"}
        lease = running.daemon.leadership.lease
        renewed = lease.expires_at
        await running.until(lambda: running.daemon.leadership.lease.expires_at > renewed + 2_000, "several renewals")
        assert running.daemon.leadership.lease.epoch == lease.epoch, "leadership is not lost again"
        await running.stop()
    finally:
        await store.close()


async def test_a_missing_registry_is_waited_for_and_never_created(
    sqlite_url: str, path: Path, run_daemon: RunDaemon
) -> None:
    component = RecordingSubscriber(GROUPS)
    running = await run_daemon(sqlite_url, {"groups": component}, lease_s=LEASE_S)
    await running.live()
    store = await open_store(sqlite_url)
    try:
        await store.ensure_consumer_group("kept")
        await running.agree(store)
        saved = backup(path)
        remove(path)
        await running.until(lambda: not running.daemon.leadership.leads, "the end of leading")
        await running.until(lambda: bool(running.daemon.leadership.trouble), "a reason")
        with pytest.raises(Unavailable, match="does not exist: put the registry back"):
            await store.list_topics()
        found = readiness(running.daemon, 20.0)
        assert not found.ready
        assert "does not exist" in " ".join(found.reasons)
        assert not list(path.parent.glob(path.name))
        saved.rename(path)
        await follows(running, store, "new")
        assert groups(path) == {"kept", "new"}
        await running.stop()
    finally:
        await store.close()


async def test_a_file_that_returns_after_another_causes_a_refresh(
    sqlite_url: str, path: Path, run_daemon: RunDaemon
) -> None:
    """Its own ledger owes nothing, but components have followed the other one meanwhile."""
    component = RecordingSubscriber(GROUPS)
    running = await run_daemon(sqlite_url, {"groups": component}, lease_s=LEASE_S)
    await running.live()
    store = await open_store(sqlite_url)
    try:
        await store.ensure_consumer_group("first")
        await running.agree(store)
        saved = backup(path)
        aside = path.with_name("aside.db")
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        saved.rename(path)
        await follows(running, store, "second")
        remove(path)
        for suffix in ("-wal", "-shm", ""):
            aside.with_name(aside.name + suffix).rename(path.with_name(path.name + suffix))
        await follows(running, store, "third")
        assert groups(path) == {"first", "third"}
        await running.stop()
    finally:
        await store.close()


async def test_a_catalog_moves_with_the_registry(sqlite_url: str, path: Path) -> None:
    catalog = await asyncio.to_thread(open_catalog, sqlite_url, LakeSettings())
    saved = backup(path)
    catalog.create_namespace("lost")
    saved.rename(path)
    assert catalog.list_namespaces() == []
    catalog.create_namespace("kept")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT namespace FROM iceberg_namespace_properties").fetchall() == [("kept",)]
    remove(path)
    with pytest.raises(OSError, match="does not exist"):
        catalog.list_namespaces()
    assert not list(path.parent.glob(path.name))
    catalog.close()
