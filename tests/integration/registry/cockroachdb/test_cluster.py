"""On a CockroachDB cluster, by `make cockroach`: the schema, copies, snapshots, and commits whose answer is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import get_args

import pytest
from sqlalchemy import make_url

from registry.cockroachdb import schema
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.copy import COPIED, copy_registry
from registry.engines import StoreSettings, async_engine, parse_url, sync_engine
from registry.errors import Invalid, SchemaMismatch
from registry.hlc import parse_timestamp, timestamp_of
from registry.migrate import migrate
from registry.models import PUBLISHED, UNPUBLISHED, Row
from registry.position import TimestampVisibility
from registry.schema import VERSION_TABLE
from registry.schema_status import status
from registry.stores.cockroachdb import CockroachStore
from tests.contracts.contents import contents
from tests.doubles.clock import ManualClock
from tests.doubles.failing_postgres import FailingPostgres, Fault
from tests.fixtures.stores import OpenStore
from tests.samples import ONE_OF_EACH, TABLE, file, segment
from tests.servers.cockroachdb import CockroachCluster


def _tables(url: str) -> set[str]:
    engine = sync_engine(parse_url(url), StoreSettings())
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT table_name FROM [SHOW TABLES] WHERE schema_name = 'public'")
            return set(found.scalars())
    finally:
        engine.dispose()


def test_a_fresh_database_gets_the_newest_schema(cockroach: CockroachCluster) -> None:
    with cockroach.database() as url:
        assert status(url).state == "missing"
        with pytest.raises(Invalid, match="begin with 0010"):
            migrate(url, revision="0009")
        after = migrate(url)
        assert (after.state, after.found, status(url).state) == ("current", after.expected, "current")
        assert _tables(url) == {*schema.table_names(), VERSION_TABLE}
        assert migrate(url).state == "current"
        assert migrate(url, revision="base").state == "missing"
        assert _tables(url) == set()
        assert migrate(url).state == "current"


def test_an_interrupted_migration_is_run_again(cockroach: CockroachCluster) -> None:
    with cockroach.database() as url:
        engine = sync_engine(parse_url(url), StoreSettings())
        with engine.connect() as connection:
            schema.create_tables(connection)
            connection.exec_driver_sql("DROP TABLE commit_attempts, segments")  # as if it had not come so far
        engine.dispose()
        assert status(url).state == "missing"
        assert migrate(url).state == "current"
        assert _tables(url) == {*schema.table_names(), VERSION_TABLE}


async def test_a_database_without_a_schema_is_refused(cockroach: CockroachCluster) -> None:
    missing = pytest.raises(SchemaMismatch, match="holds no registry: run `astha registry migrate`")
    with cockroach.database() as url, missing:
        await open_store(url)


async def test_copies_from_and_to_other_databases_are_equal(
    cockroach_url: str, sqlite_url: str, postgres_url: str, cockroach: CockroachCluster, opened: OpenStore
) -> None:
    """SQLite, CockroachDB, PostgreSQL, CockroachDB."""
    with cockroach.database() as last_url:
        await asyncio.to_thread(migrate, last_url)
        stores = [await opened(url) for url in (sqlite_url, cockroach_url, postgres_url, last_url)]
        async with stores[0].load() as load:
            for kind in (*PUBLISHED, *UNPUBLISHED):
                await load.add([row for row in ONE_OF_EACH if type(row) is kind])
        for source, target in pairwise(stores):
            copied = await copy_registry(source, target, page=3)
            assert sum(copied.values()) > 0
        found = [await _copied(store) for store in stores]
        assert found[1:] == [found[0]] * 3
        table = await stores[3].create_table("db", "new", "s3://lake/new", TABLE)
        assert table.id > max(row.id for row in await stores[0].list_tables())
        await stores[3].close()


async def _copied(store: MetadataStore) -> dict[str, list[Row]]:
    return {name: rows for name, rows in (await contents(store)).items() if name in {kind.table for kind in COPIED}}


async def test_a_snapshot_is_a_position(cockroach_url: str, opened: OpenStore) -> None:
    store = await opened(cockroach_url)
    before = await store.position()
    await store.create_topic("orders", 1)
    async with store.consistent_read() as read:
        assert isinstance(read.visibility, TimestampVisibility)
        place = read.visibility.last
    assert before < place <= await store.position()
    async with store._autocommit() as connection:  # type: ignore[attr-defined]
        await connection.exec_driver_sql(f"BEGIN AS OF SYSTEM TIME '{timestamp_of(place)}'")
        times = await connection.exec_driver_sql("SELECT crdb_internal_mvcc_timestamp::STRING FROM topics")
        committed = parse_timestamp(times.scalar_one())
        await connection.exec_driver_sql("COMMIT")
    assert before < committed[0] <= place


@pytest.mark.parametrize("fault", get_args(Fault))
async def test_a_commit_with_an_unknown_outcome_is_looked_up(
    cockroach_url: str, clock: ManualClock, fault: Fault
) -> None:
    left: list[Fault] = []
    direct = make_url(cockroach_url)
    assert direct.host is not None
    assert direct.port is not None
    plan = lambda _, commits: left.pop() if commits and left else None  # noqa: E731
    async with FailingPostgres(direct.host, direct.port, plan) as proxy:
        through = parse_url(cockroach_url).set(host="127.0.0.1", port=proxy.port)
        store = CockroachStore(async_engine(through, StoreSettings()), clock)
        try:
            left[:] = [fault]
            await store.create_topic("orders", 2)
            table = await store.create_table("db", "t", "s3://lake/t", TABLE)
            left[:] = [fault, fault]
            added = await store.add_files(table.id, [file("a"), file("b")])
            left[:] = [fault]
            await store.add_segment(segment(0))
            await store.register_agent("one", "host:1")
            left[:] = [fault, fault]
            lease = await store.acquire_partition_lease("orders", 0, "one", 1_000)
            assert left != [fault, fault]
            assert lease.epoch == 1
            assert {one.file_path for one in await store.list_files(table.id)} == {one.file_path for one in added}
            (statistics,) = await store.get_statistics(table.id)
            assert statistics.file_count == 2
        finally:
            await store.close()
