"""PostgreSQL roles: a daemon needs only the printed GRANTs, and missing privileges are named with their remedy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.errors import PermissionDenied, ReadOnly
from registry.models import PUBLISHED, UNPUBLISHED
from registry.privileges import AREAS, DAEMON_TABLES
from tests.integration.astha.processes import Astha, add_topic, astha, postgres_registry, prepared
from tests.integration.astha.test_preflight import checked, execute, settings_of
from tests.waiting import eventually_now

__all__ = ["astha", "postgres_registry"]  # fixtures

LAKE = """
components:
  iceberg_updater:
    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]
  metadata_orchestrator:
    tables: [tables, table_metadata]
    settings: {maintenance_every_s: 0.2}
  snapshotter:
    tables: [table_metadata, table_files, table_snapshots]
    settings: {check_every_s: 0.2, maintenance_every_s: 0.2}
  segment_store:
    tables: [topics, partitions, segments, partition_leases]
  compactor:
    use: tests.e2e.local_compactor:create
    tables: [table_files, table_stats, table_delete_files]
    settings: {heartbeat_s: 0.5, check_every_s: 0.2, defaults: {compaction.min-inputs: 4}}
"""


@pytest.fixture
def role(postgres_registry: str) -> Iterator[str]:
    """May log in, and nothing else."""
    name = f"role_{parse_url(postgres_registry).database}"
    execute(postgres_registry, f"CREATE ROLE {name} LOGIN")
    yield name
    with psycopg.connect(postgres_registry, autocommit=True) as connection:
        connection.execute(
            sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {}").format(name)
        )
    execute(postgres_registry, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    return parse_url(url).set(username=role).render_as_string(hide_password=False)


def test_every_table_belongs_to_an_area_or_to_the_daemon() -> None:
    """A table that is forgotten would be one that a daemon with the printed GRANTs can't write to."""
    placed = {*DAEMON_TABLES, *(kind for kinds in AREAS.values() for kind in kinds)}
    assert placed == {*PUBLISHED, *UNPUBLISHED}


async def test_a_refused_privilege_is_not_an_outage(postgres_registry: str, role: str) -> None:
    execute(postgres_registry, f"GRANT SELECT ON registry_version, topics TO {role}")
    store = await open_store(as_role(postgres_registry, role))
    try:
        assert await store.get_topic("none") is None
        with pytest.raises(PermissionDenied, match=r"permission denied for table topics.*astha check"):
            await store.create_topic("t", 1)
    finally:
        await store.close()


async def test_a_read_only_database_is_reported(store: MetadataStore, url: str) -> None:
    if url.startswith("sqlite"):
        async with store._autocommit() as connection:  # type: ignore[attr-defined]  # the pool hands it out again
            await connection.exec_driver_sql("PRAGMA query_only = ON")
    else:
        database = parse_url(url).database
        execute(url, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        await store.close()
    with pytest.raises(ReadOnly, match="takes no writes"):
        await store.create_topic("t", 1)


@pytest.mark.slow
def test_the_printed_grants_are_enough_to_run_every_component(
    postgres_registry: str, role: str, tmp_path: Path
) -> None:
    """Tables, inserts, snapshots, compactions and topics, all by a role that owns nothing."""
    with prepared(postgres_registry, tmp_path) as owner:
        (tmp_path / "subscriptions.yaml").write_text(LAKE)
        script = owner("check", "--grants", role)
        assert script.returncode == 0, script.stderr
        execute(postgres_registry, *script.stdout.split(";\n"))
        environment = {
            "ASTHA_REGISTRY": as_role(postgres_registry, role),
            "ASTHA_LAKE__WAREHOUSE": str(tmp_path / "lake"),
        }
        checked = owner("check", environment=environment)
        assert checked.returncode == 0, checked.stdout
        daemon = owner.run(environment=environment)
        daemon.until_ready()

        def done(*arguments: str) -> str:
            result = owner(*arguments, environment=environment)
            assert result.returncode == 0, result.stderr
            return result.stdout

        done("tables", "create", "shop.orders", "--column", "id:long")
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(10)))
        for _ in range(5):
            done("insert", "shop.orders", str(tmp_path / "rows.jsonl"))
        done("snapshot", "create", "shop.orders", "--tag", "first")
        done("topics", "create", "clicks", "--partitions", "1")
        compacted = "SELECT count(*) FROM compactions WHERE status = 'done'"

        def count(query: str) -> int:
            with psycopg.connect(postgres_registry) as connection:
                return int((connection.execute(query.encode()).fetchone() or (0,))[0])

        eventually_now(lambda: count(compacted) > 0, "a compaction by that role", 60)
        done("verify")
        status = daemon.client("a-token-of-some-length").get("/status")
        assert status["reasons"] == []
        assert not [line for line in daemon.lines if "permission denied" in str(line)]


async def test_a_reader_may_read_and_change_nothing(postgres_registry: str, role: str, astha: Astha) -> None:
    script = astha("check", "--reader-grants", role)
    assert script.returncode == 0, script.stderr
    await asyncio.to_thread(execute, postgres_registry, *script.stdout.split(";\n"))
    store = await open_store(as_role(postgres_registry, role))
    try:
        async with store.consistent_read() as read:
            assert [await read.count(kind) for kind in (*PUBLISHED, *UNPUBLISHED)] == [0] * len(
                (*PUBLISHED, *UNPUBLISHED)
            )
        with pytest.raises(PermissionDenied):
            await store.create_topic("t", 1)
    finally:
        await store.close()


def test_without_replication_a_daemon_ends_with_the_remedy(postgres_registry: str, role: str, astha: Astha) -> None:
    script = astha("check", "--grants", role).stdout
    execute(postgres_registry, *script.split(";\n"), f"ALTER ROLE {role} NOREPLICATION")
    daemon = astha.run(environment={"ASTHA_REGISTRY": as_role(postgres_registry, role)})
    assert daemon.ended() == 2
    assert f"ALTER ROLE {role} REPLICATION" in daemon.lines[-1]["event"]


def test_without_privileges_a_daemon_ends_with_the_remedy(postgres_registry: str, role: str, astha: Astha) -> None:
    execute(postgres_registry, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    daemon = astha.run(environment={"ASTHA_REGISTRY": as_role(postgres_registry, role)})
    assert daemon.ended() == 2
    assert "permission denied for table daemon_lease" in daemon.lines[-1]["event"]
    assert "astha check" in daemon.lines[-1]["event"]


def test_check_names_every_privilege_that_a_component_lacks(postgres_registry: str, role: str, tmp_path: Path) -> None:
    path = tmp_path / "subscriptions.yaml"
    tables = "[table_metadata, table_files, table_delete_files, iceberg_commits]"
    path.write_text(f"components: {{iceberg_updater: {{tables: {tables}}}}}\n")
    execute(
        postgres_registry,
        f"ALTER ROLE {role} REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT INSERT, UPDATE, DELETE ON daemon_lease, daemons, ledger, source_identity TO {role}",
    )
    results = asyncio.run(checked(settings_of(as_role(postgres_registry, role), path)))
    lacking = results["table privileges"].detail
    for table in ("compactions", "upload_intents", "files_awaiting_deletion", "iceberg_tables"):
        assert table in lacking
    assert "segments" not in lacking
    assert "ledger" not in lacking


def test_a_read_only_registry_is_the_reason_in_status(postgres_registry: str, astha: Astha) -> None:
    database = parse_url(postgres_registry).database
    execute(postgres_registry, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    daemon = astha.run()
    daemon.logged("can't ask for leadership")
    arguments = ("status", "--server", daemon.url)

    def says_so() -> bool:
        status = astha(*arguments)
        return status.returncode == 1 and "takes no writes" in status.stdout and "standing by" not in status.stdout

    eventually_now(says_so, "the reason", 60)
    warned = [line for line in daemon.lines if "can't ask for leadership" in line["event"]]
    assert [line["failures"] for line in warned] == [2**n for n in range(len(warned))]
    execute(
        postgres_registry,
        "SET default_transaction_read_only = off",
        f"ALTER DATABASE {database} RESET default_transaction_read_only",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{database}' AND pid <> pg_backend_pid()",
    )
    daemon.until_ready()


def test_migrate_repairs_the_publication_and_the_daemon_refreshes(postgres_registry: str, astha: Astha) -> None:
    daemon = astha.run()
    daemon.until_ready()
    execute(postgres_registry, "ALTER PUBLICATION astha DROP TABLE topics, agents")
    add_topic(postgres_registry, "unpublished")
    assert daemon.ended() == 2
    assert "astha registry migrate" in daemon.lines[-1]["event"]
    execute(postgres_registry, "ALTER PUBLICATION astha SET (publish = 'insert')")
    repaired = astha("registry", "migrate", "--json")
    assert len(json.loads(repaired.stdout)["repaired"]) == 2, repaired
    assert json.loads(astha("registry", "migrate", "--json").stdout)["repaired"] == []
    assert astha("check").returncode == 0
    astha.run().until_ready()
    eventually_now(lambda: "unpublished" in astha.audited()[-1], "a refresh that contains it", 60)


def test_migrate_creates_a_publication_that_was_dropped(postgres_registry: str, astha: Astha) -> None:
    execute(postgres_registry, "DROP PUBLICATION astha", "ALTER TABLE topics REPLICA IDENTITY DEFAULT")
    done = astha("registry", "migrate")
    assert done.stdout.count("repaired:") == 2, done.stdout
    assert astha("check").returncode == 0


def test_a_filtered_publication_is_incomplete(postgres_registry: str, astha: Astha) -> None:
    with psycopg.connect(postgres_registry) as connection:
        if connection.info.server_version < 150000:
            pytest.skip("row filters came with PostgreSQL 15: `make matrix` has both")
    execute(
        postgres_registry,
        "ALTER PUBLICATION astha DROP TABLE topics",
        "ALTER PUBLICATION astha ADD TABLE topics WHERE (name <> 'secret')",
    )
    assert "does not carry all of topics" in astha("check").stdout
    assert astha("registry", "migrate").returncode == 0
    assert astha("check").returncode == 0
