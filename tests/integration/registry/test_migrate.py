"""Migrations: upgrade, downgrade, upgrade; the result is the schema of the code."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine

from registry.connect import open_store
from registry.embedded_postgres import EmbeddedPostgres
from registry.engines import StoreSettings, parse_url, sqlite_path
from registry.errors import Invalid, SchemaMismatch, Unavailable
from registry.inputs import SnapshotDraft
from registry.json_text import JsonText
from registry.migrate import migrate
from registry.models import PUBLISHED, UNPUBLISHED, LedgerEntry, SegmentObject
from registry.schema import PUBLICATION, PUBLISHED_TABLES, metadata, table_of
from registry.schema_status import status
from tests.fixtures.databases import Backend, MakeDatabase
from tests.integration.registry.plain_sql import execute_sql, select
from tests.integration.registry.schema_catalog import catalog, without
from tests.samples import ONE_OF_EACH, TABLE, file

HEAD = "0010"
ICEBERG = {"iceberg_tables", "iceberg_namespace_properties"}


def test_upgrade_downgrade_and_upgrade_again(new_database: MakeDatabase) -> None:
    url = new_database()
    assert migrate(url).state == "current"
    first = catalog(url)
    assert status(url).found == HEAD
    back = migrate(url, revision="base")
    assert (back.state, back.found) == ("missing", None)
    left = {str(row[0]) for row in catalog(url).get("columns", catalog(url).get("table", []))}
    assert left <= {"registry_version", "sqlite_sequence"}
    assert not any(without(catalog(url), "registry_version", "sqlite_sequence").values())
    assert migrate(url).state == "current"
    assert catalog(url) == first
    assert migrate(url).state == "current"  # nothing to do
    assert migrate(url, revision=HEAD).state == "current"
    assert catalog(url) == first


async def test_a_downgrade_and_upgrade_keep_rows_and_their_log(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url, revision="0001")
    before = catalog(url)
    migrate(url)
    newest = catalog(url)
    assert newest != before
    store = await open_store(url)
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    one = await store.record_snapshot(table.id, SnapshotDraft(snapshot_id=1, timestamp=1, tag="a"))
    gone = await store.record_snapshot(table.id, SnapshotDraft(snapshot_id=2, timestamp=1, tag="b"))
    await store.close()
    execute_sql(url, f"DELETE FROM table_snapshots WHERE id = {gone.id}")
    migrate(url, revision="0001")
    assert catalog(url) == before
    migrate(url)
    assert catalog(url) == newest
    store = await open_store(url)
    assert await store.list_snapshots(table.id) == [one]
    again = await store.record_snapshot(table.id, SnapshotDraft(snapshot_id=1, timestamp=1, tag="c"))
    assert again.id > gone.id, "an id is not used again"
    await store.close()


async def test_objects_of_existing_segments_are_counted(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url, revision="0003")
    execute_sql(url, "INSERT INTO topics VALUES ('t', 1, NULL, '{}', 0, 0)")
    execute_sql(url, "INSERT INTO partitions VALUES ('t', 0, 30, 0, 0)")
    for number, key in enumerate(["a", "b", "a"], 1):
        base = number * 10 - 10
        row = f"{number}, 't', 0, {base}, {base + 9}, 10, 7, 'lake', '{key}', 0, 0"
        execute_sql(url, f"INSERT INTO segments VALUES ({row})")
    migrate(url)
    store = await open_store(url)
    async with store.consistent_read() as read:
        rows = [row async for page in read.rows(SegmentObject) for row in page]
    objects = [(row.s3_key, row.live_segments, row.size_bytes) for row in rows]
    assert objects == [("a", 2, 14), ("b", 1, 7)]
    assert (await store.get_segments("t", 0))[0].block_index is None
    assert await store.delete_segments_before("t", 0, 20) == 2
    assert [intent.path for intent in await store.list_stale_intents(0)] == ["s3://lake/b"]
    await store.close()
    migrate(url, revision="0003")
    migrate(url)


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_catalog_that_pyiceberg_created_is_kept(new_database: MakeDatabase, backend: Backend, version: str) -> None:
    url, fresh = new_database(), new_database()
    migrate(url, revision="0005")
    migrate(fresh)
    driver = "sqlite" if backend == "sqlite" else "postgresql+psycopg"
    created = SqlCatalog("astha", uri=parse_url(url).set(drivername=driver).render_as_string(hide_password=False))
    created.create_namespace("db")
    created.close()
    if version == "v0":
        execute_sql(url, "ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    execute_sql(
        url, "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name) VALUES ('astha', 'db', 't')"
    )
    assert migrate(url).state == "current"
    assert select(url, "SELECT table_name, iceberg_type FROM iceberg_tables") == [("t", None)]
    assert select(url, "SELECT namespace, property_key FROM iceberg_namespace_properties") == [("db", "exists")]
    if backend == "postgres":
        assert catalog(url) == catalog(fresh), "the same tables, whichever made them"
    migrate(url, revision="0005")
    assert select(url, "SELECT table_name FROM iceberg_tables") == [("t",)], "the way back keeps what leads to the lake"
    assert migrate(url).state == "current"


async def test_the_ledger_keeps_its_rows_under_the_new_column_name(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url, revision="0006")
    before = catalog(url)
    visibility = '{"last":41}'
    yes, no = ("1", "0") if url.startswith("sqlite") else ("true", "false")
    execute_sql(url, f"INSERT INTO ledger VALUES ('one', 42, '{visibility}', '[]', 'live', {yes}, NULL, 7)")
    execute_sql(url, f"INSERT INTO ledger VALUES ('two', NULL, NULL, '[]', 'live', {no}, NULL, 8)")
    entries = [
        LedgerEntry("one", 42, JsonText(visibility), JsonText("[]"), "live", True, None, 7, "astha"),
        LedgerEntry("two", None, None, JsonText("[]"), "live", False, None, 8, "astha"),
    ]
    for _ in range(2):
        migrate(url)
        store = await open_store(url)
        assert await store.read_ledger() == entries
        await store.close()
        migrate(url, revision="0006")
        assert catalog(url) == before
    assert len(select(url, "SELECT place FROM ledger WHERE place IS NOT NULL")) == 1


async def test_the_ledgers_rows_become_those_of_the_default_group(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url, revision="0007")
    before = catalog(url)
    no = "0" if url.startswith("sqlite") else "false"
    execute_sql(url, f"INSERT INTO ledger VALUES ('one', 42, '{{}}', '[]', 'live', {no}, 'why', 7)")
    kept = LedgerEntry("one", 42, JsonText("{}"), JsonText("[]"), "live", False, "why", 7, "astha")
    for _ in range(2):
        migrate(url)
        store = await open_store(url)
        lease = await store.take_daemon_lease("other", "me", 1_000)
        assert lease is not None
        other = LedgerEntry("one", 1, None, JsonText("[]"), "live", False, None, 8, "other")
        await store.write_ledger([other], lease)
        assert await store.read_ledger() == [kept, other]
        await store.close()
        migrate(url, revision="0007")
        assert catalog(url) == before
        assert select(url, "SELECT component, position, reason FROM ledger") == [("one", 42, "why")]


async def test_files_of_engines_are_imports_after_a_downgrade(new_database: MakeDatabase) -> None:
    """SQLite creates the table of files again: ids, indexes and the change log stay."""
    url = new_database()
    migrate(url, revision="0008")
    before = catalog(url)
    migrate(url)
    store = await open_store(url)
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    gone, kept = await store.add_files(table.id, [file("gone"), file("kept")], operation="external")
    await store.remove_files(table.id, [kept], reason="the newest id is not in the table any more")
    await store.close()
    migrate(url, revision="0008")
    assert catalog(url) == before
    assert select(url, "SELECT id, operation FROM table_files") == [(gone.id, "import")]
    migrate(url)
    store = await open_store(url)
    (added,) = await store.add_files(table.id, [file("later")], operation="external")
    assert added.id > kept.id
    await store.close()
    if url.startswith("sqlite"):
        logged = (
            "SELECT after ->> 'file_path' FROM change_log WHERE table_name = 'table_files' AND operation = 'INSERT'"
        )
        assert select(url, logged) == [("gone",), ("kept",), ("later",)]


def test_the_migration_of_the_ledger_keeps_privileges(postgres_url: str) -> None:
    """A daemon's role would otherwise lose the table that it needs most."""
    migrate(postgres_url, revision="0007")
    execute_sql(postgres_url, "GRANT SELECT, INSERT ON ledger TO PUBLIC")
    migrate(postgres_url)
    found = select(postgres_url, "SELECT privilege_type FROM information_schema.table_privileges "
                                "WHERE table_name = 'ledger' AND grantee = 'PUBLIC' ORDER BY 1")  # fmt: skip
    assert found == [("INSERT",), ("SELECT",)]


async def test_a_downgrade_with_rows_in_every_table(new_database: MakeDatabase) -> None:
    url = new_database()
    migrate(url)
    store = await open_store(url)
    async with store.load() as load:
        for row in ONE_OF_EACH:
            await load.add([row])
    await store.close()
    assert migrate(url, revision="base").state == "missing"
    assert migrate(url).state == "current"


def test_a_migrated_schema_is_the_schema_of_the_code(new_database: MakeDatabase, backend: Backend) -> None:
    migrated, created = new_database(), new_database()
    migrate(migrated)
    driver = "sqlite" if backend == "sqlite" else "postgresql+psycopg"
    engine = create_engine(parse_url(created).set(drivername=driver))
    metadata.create_all(engine)
    engine.dispose()
    one, other = without(catalog(migrated), "registry_version"), catalog(created)
    if backend == "sqlite":  # the change log is the migrations' own
        one, other = without(one, "change_log", "change_clock"), without(other, "change_log", "change_clock")
        one.pop("trigger")
    else:
        for found in (one, other):
            found.pop("publications"), found.pop("replica identity")
    assert one == other


def test_models_have_the_columns_of_their_tables_in_order() -> None:
    for kind in (*PUBLISHED, *UNPUBLISHED):
        table = table_of(kind)
        assert kind.__struct_fields__ == tuple(column.name for column in table.c), kind
        assert kind.key == tuple(column.name for column in table.primary_key), kind
        for column in table.c:
            assert ("None" in str(kind.__annotations__[column.name])) == column.nullable, (kind, column.name)
    assert {*PUBLISHED_TABLES, *(kind.table for kind in UNPUBLISHED)} == set(metadata.tables)


def test_the_postgresql_publication(postgres_url: str) -> None:
    found = catalog(postgres_url)
    assert [(name, table) for name, _, table in found["publications"]] == [
        (PUBLICATION, name) for name in sorted(PUBLISHED_TABLES)
    ]
    full = {str(name) for name, identity in found["replica identity"] if identity in ("f", b"f")}
    assert full == set(PUBLISHED_TABLES)
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT pubinsert, pubupdate, pubdelete, puballtables FROM pg_publication WHERE pubname = %s", [PUBLICATION]
        ).fetchone()
    assert row == (True, True, True, False)


def test_sqlite_settings(sqlite_url: str) -> None:
    with closing(sqlite3.connect(sqlite_path(parse_url(sqlite_url)))) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        strict = dict(connection.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'"))
    assert {name for name in strict if strict[name]} == {*metadata.tables, "change_log", "change_clock"} - ICEBERG


async def test_connections_of_a_sqlite_store(sqlite_url: str) -> None:
    store = await open_store(sqlite_url, settings=StoreSettings(busy_timeout_s=12.5))
    try:
        async with store.consistent_read() as read:
            connection = read._connection  # type: ignore[attr-defined]
            wanted = {"foreign_keys": 1, "busy_timeout": 12_500, "journal_mode": "wal", "synchronous": 2}
            for pragma, value in wanted.items():
                assert (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar() == value
    finally:
        await store.close()


async def test_a_missing_schema_says_what_to_do(new_database: MakeDatabase) -> None:
    url = new_database()
    assert status(url).state == "missing"
    with pytest.raises(SchemaMismatch, match="holds no registry: run `astha registry migrate`"):
        await open_store(url)
    if url.startswith("sqlite"):
        assert not sqlite_path(parse_url(url)).exists()  # asking does not make the file


async def test_a_newer_schema_is_refused(url: str) -> None:
    execute_sql(url, "UPDATE registry_version SET version_num = '9999', compatible_from = '9998'")
    found = status(url)
    assert (found.state, found.found, found.expected) == ("new", "9999", HEAD)
    with pytest.raises(SchemaMismatch, match=r"schema 9999.*upgrade Astha"):
        await open_store(url)
    before = catalog(url)
    for revision in ("head", "base", HEAD):
        with pytest.raises(SchemaMismatch, match="upgrade Astha"):
            migrate(url, revision=revision)
    assert catalog(url) == before


async def test_an_older_schema_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code pretends to have a later version."""
    monkeypatch.setattr("registry.schema_status.newest_revision", lambda: "0011")
    with pytest.raises(SchemaMismatch, match=r"schema 0010, older than 0011: run `astha registry migrate`"):
        await open_store(url)


def test_an_unknown_revision_is_refused(new_database: MakeDatabase) -> None:
    url = new_database()
    with pytest.raises(
        Invalid, match="known are 0001, 0002, 0003, 0004, 0005, 0006, 0007, 0008, 0009, 0010, base and head"
    ):
        migrate(url, revision="0815")
    assert status(url).state == "missing"


def test_a_failed_migration_leaves_nothing(new_database: MakeDatabase) -> None:
    url = new_database()
    if url.startswith("sqlite"):
        migrate(url)
        migrate(url, revision="base")
    execute_sql(url, "CREATE TABLE table_files (x integer)")  # made last, so that all else has been made before it
    before = catalog(url)
    with pytest.raises(Unavailable, match="table_files"):
        migrate(url)
    assert without(catalog(url), "registry_version") == without(before, "registry_version")
    execute_sql(url, "DROP TABLE table_files")
    assert migrate(url).state == "current"


def test_urls_without_a_database(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="directory of the file does not exist"):
        migrate(f"sqlite:///{tmp_path}/none/registry.db")
    with pytest.raises(Unavailable):
        migrate(f"sqlite:///{tmp_path}")
    (tmp_path / "text").write_text("this is no database, but it is long enough to look at" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        status(f"sqlite:///{tmp_path}/text")


def test_a_database_that_does_not_exist(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        status(postgres.url("nowhere"))


def _migrate_at_once(url: str, start: object, answers: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    try:
        answers.put(migrate(url).state)  # type: ignore[attr-defined]
    except BaseException as error:
        answers.put(repr(error))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_concurrent_migrations(new_database: MakeDatabase) -> None:
    url = new_database()
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_migrate_at_once, args=(url, start, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
        process.close()
    answers.close()
    answers.join_thread()
    assert found == ["current"] * 3
