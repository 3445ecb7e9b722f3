"""`astha check` against servers with problems."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from astha.clock import SystemLoopClock
from astha.preflight import PreflightResult, Verdict, preflight
from astha.settings import Settings, load_settings
from astha.sources.postgres.source import PostgresSource
from registry.embedded_postgres import EmbeddedPostgres
from registry.migrate import migrate
from tests.fixtures.sources import SourceReader, release_slot
from tests.fixtures.stores import OpenStore
from tests.integration.astha.processes import postgres_registry

__all__ = ["postgres_registry"]  # fixtures


@pytest.fixture
def subscriptions(tmp_path: Path) -> Path:
    path = tmp_path / "subscriptions.yaml"
    path.write_text("components: {audit: {use: 'astha.testing:RecordingSubscriber', tables: [topics, tables]}}\n")
    return path


def settings_of(url: str, subscriptions: Path) -> Settings:
    return load_settings(flags={"registry": {"url": url}, "subscriptions": str(subscriptions), "server": {"port": 0}})


async def checked(settings: Settings) -> dict[str, PreflightResult]:
    results = await preflight(settings)
    return {result.check: result for result in results if not result.check.startswith("component")}


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def test_a_server_without_problems(postgres_registry: str, subscriptions: Path) -> None:
    results = await checked(settings_of(postgres_registry, subscriptions))
    assert [result for result in results.values() if result.verdict is not Verdict.OK] == []
    assert "wal_level" in results
    assert "does not exist yet" in results["slot"].detail


@pytest.fixture
def physical() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"wal_level": "replica", "fsync": "off", "max_replication_slots": 0}) as server:
        migrate(server.url("postgres"))
        yield server


@pytest.mark.slow
async def test_a_server_without_logical_wal(physical: EmbeddedPostgres, subscriptions: Path) -> None:
    results = await checked(settings_of(physical.url("postgres"), subscriptions))
    level = results["wal_level"]
    assert (level.verdict, level.detail.split(",")[0]) == (Verdict.PROBLEM, "wal_level is replica")
    assert level.remedy is not None
    assert "ALTER SYSTEM SET wal_level = logical" in level.remedy
    assert "all 0 slots are taken" in results["max_replication_slots"].detail
    assert results["schema version"].verdict is Verdict.OK


async def test_tables_that_are_not_published_or_send_only_keys(postgres_registry: str, subscriptions: Path) -> None:
    execute(
        postgres_registry, "ALTER PUBLICATION astha DROP TABLE topics", "ALTER TABLE tables REPLICA IDENTITY DEFAULT"
    )
    results = await checked(settings_of(postgres_registry, subscriptions))
    assert "does not carry all of topics" in results["publication"].detail
    assert results["replica identity"].remedy == "ALTER TABLE tables REPLICA IDENTITY FULL"
    execute(postgres_registry, "DROP PUBLICATION astha")
    assert (await checked(settings_of(postgres_registry, subscriptions)))["publication"].verdict is Verdict.PROBLEM


async def test_a_user_with_few_privileges(postgres_registry: str, subscriptions: Path) -> None:
    execute(postgres_registry, "DROP ROLE IF EXISTS weak", "CREATE ROLE weak LOGIN", "GRANT SELECT ON topics TO weak")
    execute(postgres_registry, "GRANT SELECT ON registry_version TO weak")
    results = await checked(settings_of(postgres_registry.replace("postgres@", "weak@"), subscriptions))
    assert results["replication privilege"].verdict is Verdict.PROBLEM
    assert "ALTER ROLE weak REPLICATION" in str(results["replication privilege"].remedy)
    tables = results["table privileges"]
    lacking = tables.detail.removeprefix("weak lacks SELECT on ").partition(";")[0].split(", ")
    assert "tables" in lacking
    assert "topics" not in lacking
    assert "INSERT on ledger, daemon_lease, daemons, source_identity" in tables.detail
    assert "astha check --grants weak" in str(tables.remedy)
    execute(postgres_registry, "DROP OWNED BY weak", "DROP ROLE weak")


async def test_a_slot_of_another_plugin(postgres_registry: str, subscriptions: Path) -> None:
    execute(postgres_registry, "SELECT pg_create_logical_replication_slot('astha', 'test_decoding')")
    assert (
        "belongs to plugin test_decoding"
        in (await checked(settings_of(postgres_registry, subscriptions)))["slot"].detail
    )


async def test_a_slot_that_another_group_reads(postgres_registry: str, subscriptions: Path, opened: OpenStore) -> None:
    store, settings = await opened(postgres_registry), settings_of(postgres_registry, subscriptions)
    source = PostgresSource(postgres_registry, store, settings.source, SystemLoopClock(), "others")
    async with SourceReader(source) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        found = (await checked(settings))["slot"]
        assert (found.verdict, found.detail.partition(":")[0]) == (Verdict.PROBLEM, "astha is in use by group others")
        assert "source.slot" in str(found.remedy)
    await asyncio.to_thread(release_slot, postgres_registry, "astha")


async def test_a_database_without_a_registry(postgres_registry: str, subscriptions: Path) -> None:
    migrate(postgres_registry, revision="base")
    results = await checked(settings_of(postgres_registry, subscriptions))
    assert results["schema version"].verdict is Verdict.PROBLEM
    assert [result.check for result in results.values() if result.verdict is not Verdict.OK] == ["schema version"]
    assert "publication" not in results


def test_conninfo_reaches_the_same_database(postgres_registry: str, subscriptions: Path) -> None:
    settings = settings_of(postgres_registry, subscriptions)
    assert conninfo_to_dict(settings.registry.conninfo())["dbname"] == postgres_registry.rpartition("/")[2]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Below directories that every user may enter, or so it seems."""
    with TemporaryDirectory() as name:
        made = Path(name).resolve()
        monkeypatch.setattr(Path, "parents", property(lambda path: [made] if path.parent == made else []))
        made.chmod(0o755)
        yield made


async def test_files_that_other_users_can_read_are_warnings(subscriptions: Path, place: Path) -> None:
    migrate(f"sqlite:///{place}/registry.db")
    (place / "warehouse").mkdir()
    (place / "warehouse").chmod(0o700)
    flags = {"registry": {"url": f"sqlite:///{place}/registry.db"}, "lake": {"warehouse": f"{place}/warehouse"}}
    settings = load_settings(flags=flags | {"subscriptions": str(subscriptions), "server": {"port": 0}})

    async def warnings() -> list[str]:
        return [found.detail for found in await preflight(settings) if found.verdict is Verdict.WARNING]

    assert await warnings() == []
    (place / "registry.db").chmod(0o644)
    (place / "warehouse").chmod(0o777)
    assert await warnings() == [
        f"every user of this machine can read {place}/registry.db: its mode is 0644, registry.file_mode is 0600",
        f"every user of this machine can write to {place}/warehouse: its mode is 0777, lake.directory_mode is 0700",
    ]
    os.chmod(place, 0o700)  # noqa: PTH101
    assert await warnings() == []
