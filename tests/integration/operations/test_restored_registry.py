"""An older backup over the registry: a durable component must not keep what the registry no longer has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astha.sources.sqlite import SqliteSource, TailSettings
from astha.testing import RecordingSubscriber
from registry.connect import open_store
from registry.engines import parse_url, sqlite_path
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.databases import Backend, MakeDatabase
from tests.fixtures.sources import SourceReader
from tests.fixtures.stores import OpenStore
from tests.integration.operations.backups import dump, restore

GROUPS = "consumer_groups"


class Durable(RecordingSubscriber):
    """Keeps its rows from daemon to daemon, as a component with a database of its own does."""

    durable = True


def names(subscriber: RecordingSubscriber) -> set[str]:
    return {str(key[0]) for key in subscriber.rows[GROUPS]}


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
async def test_an_older_backup_over_the_same_registry(
    url: str, backend: Backend, running: bool, tmp_path: Path, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    """On PostgreSQL the slot, the server and its timeline are the same before and after. The ledger, which is older
    than the slot, and the publication, which was created again, show that the history is another one.
    """
    component, store = Durable(GROUPS), await opened(url)
    daemon = await run_daemon(url, {"groups": component})
    await daemon.live()
    await store.ensure_consumer_group("kept")
    await store.ensure_consumer_group("deleted later")
    await daemon.agree(store)
    await asyncio.to_thread(dump, url, tmp_path / "backup")
    await store.delete_consumer_group("deleted later")
    await store.ensure_consumer_group("lost")
    await daemon.agree(store)
    if not running:
        await daemon.stop()
    await store.close()
    await asyncio.to_thread(restore, tmp_path / "backup", url)
    if not running:
        daemon = await run_daemon(url, {"groups": component})
    restored = await opened(url)
    await daemon.until(lambda: component.refreshes >= 2, "a refresh")
    await daemon.agree(restored)
    assert names(component) == {"kept", "deleted later"}
    await restored.ensure_consumer_group("new")
    await daemon.agree(restored)
    await daemon.stop()


async def test_a_backup_in_a_new_database(
    url: str, tmp_path: Path, opened: OpenStore, run_daemon: RunDaemon, new_database: MakeDatabase
) -> None:
    """The ledger came along, with positions that mean nothing there."""
    component, store = Durable(GROUPS), await opened(url)
    daemon = await run_daemon(url, {"groups": component})
    await daemon.live()
    await store.ensure_consumer_group("kept")
    await daemon.agree(store)
    await asyncio.to_thread(dump, url, tmp_path / "backup")
    await store.ensure_consumer_group("lost")
    await daemon.agree(store)
    await daemon.stop()
    elsewhere = new_database()
    await asyncio.to_thread(restore, tmp_path / "backup", elsewhere)
    moved = await run_daemon(elsewhere, {"groups": component})
    await moved.until(lambda: component.refreshes >= 2, "a refresh")
    assert names(component) == {"kept"}
    await moved.stop()


async def gaps_of_one_run(url: str, group: str) -> list[str]:
    """Writes and reads a change, acknowledges it, and closes everything, as a process that ends."""
    store = await open_store(url)
    try:
        async with SourceReader(SqliteSource(url, store, settings=TailSettings(trim_every_s=0.01))) as reader:
            await reader.until(lambda: bool(reader.starts), "the start")
            await store.ensure_consumer_group(group)
            change = await store.position()
            await reader.reach(change)  # after changes that an earlier run has not trimmed
            reader.source.acknowledge(change)
            return reader.gaps
    finally:
        await store.close()


async def test_a_sqlite_file_that_is_overwritten_in_place(sqlite_url: str, tmp_path: Path) -> None:
    """Nothing in the file shows it: the inode is the same, and the copy's ledger fits the copy's change log."""
    path = sqlite_path(parse_url(sqlite_url))
    assert len(await gaps_of_one_run(sqlite_url, "first")) == 1, "the first start"
    assert await gaps_of_one_run(sqlite_url, "kept") == []
    await asyncio.to_thread(dump, sqlite_url, tmp_path / "backup")
    assert await gaps_of_one_run(sqlite_url, "lost") == []
    inode = path.stat().st_ino
    path.write_bytes((tmp_path / "backup").read_bytes())
    assert path.stat().st_ino == inode
    assert len(await gaps_of_one_run(sqlite_url, "new")) == 1
    assert await gaps_of_one_run(sqlite_url, "newer") == [], "noticed once"
