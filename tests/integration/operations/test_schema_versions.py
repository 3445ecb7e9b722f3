"""Which schemas a version can use: its own, and newer ones that say so. The next version is simulated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astha.testing import RecordingSubscriber
from registry.connect import open_store
from registry.errors import SchemaMismatch, SchemaTooNew
from registry.migrate import migrate
from registry.models import PUBLISHED, UNPUBLISHED
from registry.revisions import newest_revision
from registry.schema_status import status
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.databases import MakeDatabase
from tests.integration.operations.next_version import EXPANDING, NOTHING, next_version, with_revisions
from tests.integration.registry.plain_sql import execute_sql, select
from tests.integration.registry.schema_catalog import catalog
from tests.samples import ONE_OF_EACH, TABLE

HEAD = newest_revision()
EVERYTHING = frozenset(kind.table for kind in PUBLISHED)


@pytest.fixture
def expanded(tmp_path: Path) -> Path:
    """The migrations of a next version that is compatible with this one."""
    return with_revisions(tmp_path / "next", {"next": (HEAD, EXPANDING)})


def migrate_with(scripts: Path, url: str, revision: str = "head") -> None:
    with next_version(scripts):
        migrate(url, revision=revision)


def test_a_compatible_newer_schema_can_be_used_and_stays(url: str, expanded: Path) -> None:
    migrate_with(expanded, url)
    found = status(url)
    assert (found.state, found.found, found.expected) == ("compatible", "next", HEAD)
    found.require_usable()
    before = catalog(url)
    assert migrate(url).state == "compatible", "after a rollback, the older version's installer may migrate"
    assert catalog(url) == before
    assert status(url).state == "compatible", "what the newer version recorded stays"
    for revision in (HEAD, "base"):
        with pytest.raises(SchemaTooNew, match="newer version"):
            migrate(url, revision=revision)
    with pytest.raises(SchemaTooNew, match="newer version"):
        found.require_current()


@pytest.mark.parametrize("compatible_from", [None, "next"])
async def test_a_newer_schema_that_is_not_compatible_is_refused(
    url: str, tmp_path: Path, compatible_from: str | None
) -> None:
    """It is one revision ahead and says nothing, or two and compatible with the one between."""
    revisions = {"next": (HEAD, EXPANDING), "after": (compatible_from, NOTHING)}
    scripts = with_revisions(tmp_path / "next", revisions)
    migrate_with(scripts, url)
    assert status(url).state == "new"
    with pytest.raises(SchemaTooNew, match="upgrade Astha"):
        await open_store(url)
    with pytest.raises(SchemaTooNew, match="upgrade Astha"):
        migrate(url)


def test_two_revisions_ahead_can_be_used_if_the_newest_says_so(url: str, tmp_path: Path) -> None:
    scripts = with_revisions(tmp_path / "next", {"next": (HEAD, EXPANDING), "after": (HEAD, NOTHING)})
    migrate_with(scripts, url)
    assert status(url).state == "compatible"


async def test_the_next_version_refuses_an_older_schema(url: str, expanded: Path) -> None:
    with next_version(expanded), pytest.raises(SchemaMismatch, match="older than next: run `astha registry migrate`"):
        await open_store(url)


def test_a_registry_without_a_record_gets_one(new_database: MakeDatabase) -> None:
    """As a version migrated it that recorded nothing yet: such a schema is compatible with itself alone."""
    url = new_database()
    migrate(url)
    complete, recorded = catalog(url), select(url, "SELECT compatible_from FROM registry_version")
    execute_sql(url, "ALTER TABLE registry_version DROP COLUMN compatible_from")
    assert status(url).state == "current"
    execute_sql(url, "UPDATE registry_version SET version_num = '9999'")
    assert status(url).state == "new"
    execute_sql(url, f"UPDATE registry_version SET version_num = '{HEAD}'")
    assert migrate(url).state == "current"
    assert catalog(url) == complete
    assert select(url, "SELECT compatible_from FROM registry_version") == recorded


async def test_this_version_writes_and_reads_every_table_of_the_next_schema(url: str, expanded: Path) -> None:
    await asyncio.to_thread(migrate_with, expanded, url)
    store = await open_store(url)
    try:
        async with store.load() as load:
            for row in ONE_OF_EACH:
                await load.add([row])
        async with store.consistent_read() as read:
            for kind in (*PUBLISHED, *UNPUBLISHED):
                written = [row for row in ONE_OF_EACH if type(row) is kind]
                assert [row async for page in read.rows(kind) for row in page] == written
    finally:
        await store.close()


async def test_a_daemon_goes_on_while_the_next_version_migrates(
    url: str, expanded: Path, run_daemon: RunDaemon
) -> None:
    subscriber = RecordingSubscriber(*EVERYTHING)
    running = await run_daemon(url, {"everything": subscriber})
    await running.live()
    store = await open_store(url)
    try:
        await store.create_topic("before", 1)
        await running.agree(store)
        await asyncio.to_thread(migrate_with, expanded, url)
        await store.create_topic("after", 1)
        table = await store.create_table("db", "t", "s3://lake/t", TABLE)
        await store.drop_table(table.id)
        await running.agree(store)
        await store.delete_topic("before")
        await running.agree(store)
        assert subscriber.refreshes == 1, "the migration costs no refresh"
        await running.stop()
    finally:
        await store.close()
