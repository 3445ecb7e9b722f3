"""A broken server or connection: Unavailable, then the pool recovers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.engines import StoreSettings
from registry.errors import RegistryError, SchemaMismatch, Unavailable
from registry.migrate import migrate
from registry.schema_status import status
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.databases import SERVER_SETTINGS
from tests.fixtures.stores import OpenStore
from tests.samples import segment
from tests.waiting import eventually

_KILL_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
async def through(postgres_url: str, proxy: PostgresProxy, opened: OpenStore) -> MetadataStore:
    return await opened(proxy.url(postgres_url), StoreSettings(pool_size=4, pool_overflow=0, connect_timeout_s=5))


async def _answers(store: MetadataStore) -> bool:
    try:
        await store.list_topics()
    except Unavailable:
        return False
    return True


async def test_a_cut_connection_is_unavailable_and_the_pool_heals(through: MetadataStore, proxy: PostgresProxy) -> None:
    await through.create_topic("orders", 1)
    await asyncio.gather(*(through.list_topics() for _ in range(8)))  # fill the pool
    proxy.cut()
    with pytest.raises(Unavailable):
        await through.list_topics()
    # The first failure is the last: the pool knows that what it holds is as old as what failed.
    assert [topic.name for topic in await through.list_topics()] == ["orders"]
    await asyncio.gather(*(through.list_topics() for _ in range(8)))


async def test_a_transaction_cut_in_the_middle_is_committed_or_rolled_back(
    through: MetadataStore, proxy: PostgresProxy, postgres_url: str, opened: OpenStore
) -> None:
    direct = await opened(postgres_url)
    await direct.create_topic("orders", 2)
    await direct.add_segment(segment(1_000_000))  # what follows is late: a transaction of several statements
    failures = 0
    for turn in range(25):
        drafts = [segment(turn * 100), segment(turn * 100 + 10), segment(turn * 10, partition=1)]
        task = asyncio.create_task(through.add_segments(drafts))
        await asyncio.wait({task}, timeout=turn / 2_000)
        proxy.cut()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert result is None or isinstance(result, Unavailable), result
        failures += result is not None
        await eventually(lambda: _answers(through), "the pool heals")
    assert failures
    found = [row async for row in direct.stream_segments("orders", 0)]
    for turn in range(25):
        mine = [row for row in found if row.base_offset // 100 == turn]
        other = await direct.find_segment_for_offset("orders", 1, turn * 10)
        assert (len(mine), other is not None) in [(0, False), (2, True)], turn


async def test_a_refused_connection_is_unavailable_and_shows_no_password(
    through: MetadataStore, proxy: PostgresProxy, postgres_url: str
) -> None:
    proxy.refuse()
    await asyncio.gather(*(through.list_topics() for _ in range(4)), return_exceptions=True)
    for call in (through.list_topics, lambda: through.create_topic("orders", 1), through.position):
        with pytest.raises(Unavailable, match=str(proxy.port)):
            await call()
    with pytest.raises(Unavailable):
        async with through.consistent_read():
            pass
    secret = proxy.url(postgres_url).replace("postgres@", "postgres:secret@")
    for text in (secret, f"{proxy.url(postgres_url)}?password=secret"):
        with pytest.raises(Unavailable) as caught:
            await open_store(text)
        assert "secret" not in str(caught.value)
        assert str(proxy.port) in str(caught.value)
    proxy.accept()
    await through.create_topic("orders", 1)


async def test_a_password_is_not_in_the_errors_of_a_store(postgres_url: str, opened: OpenStore) -> None:
    """For every error with the URL: pool exhausted, statement cancelled, schema missing."""
    url = f"{postgres_url.replace('postgres@', 'postgres:secret@')}?password=secret"
    store = await opened(url, StoreSettings(pool_size=1, pool_overflow=0, pool_timeout_s=0.05))
    errors: list[RegistryError] = []
    async with store.consistent_read():
        with pytest.raises(Unavailable, match="all connections are in use") as caught:
            await store.list_topics()
        errors.append(caught.value)
    await asyncio.to_thread(migrate, postgres_url, revision="base")
    with pytest.raises(SchemaMismatch, match="astha registry migrate") as mismatch:
        await store.list_topics()
    errors.append(mismatch.value)
    with pytest.raises(SchemaMismatch) as mismatch:
        await open_store(url)
    errors.append(mismatch.value)
    for error in errors:
        assert "secret" not in str(error)
        assert "127.0.0.1" in str(error)


@pytest.mark.slow
async def test_an_unresponsive_server_is_unavailable_after_the_timeout(
    postgres_url: str, proxy: PostgresProxy, opened: OpenStore
) -> None:
    """New connections have a timeout; a call on a pooled one ends with its caller's timeout."""
    settings = StoreSettings(pool_size=1, pool_overflow=1, connect_timeout_s=2)  # libpq's shortest
    store = await opened(proxy.url(postgres_url), settings)
    await store.create_topic("orders", 1)
    proxy.go_deaf()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.list_topics(), 0.2)
    with pytest.raises(Unavailable):
        await store.list_topics()
    proxy.listen()
    await eventually(lambda: _answers(store), "the store answers again")


async def test_a_statement_that_takes_too_long_is_unavailable(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url, StoreSettings(statement_timeout_s=0.2))
    await store.create_topic("orders", 1)
    async with await psycopg.AsyncConnection.connect(postgres_url) as holder:
        await holder.execute("LOCK TABLE topics IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="timeout"):
            await store.list_topics()
        with pytest.raises(Unavailable, match="timeout"):
            await store.create_topic("more", 1)
    assert [topic.name for topic in await store.list_topics()] == ["orders"]


async def test_a_backend_that_is_killed_is_unavailable_once(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url)
    await store.create_topic("orders", 1)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as killer:
        await killer.execute(_KILL_OTHERS)
    with pytest.raises(Unavailable):
        await store.list_topics()
    await store.list_topics()


async def test_segments_are_added_after_a_backend_was_killed(postgres_url: str, opened: OpenStore) -> None:
    """Through the driver's own cursor, which also notices a lost connection; the next call gets another one."""
    store = await opened(postgres_url)
    await store.create_topic("orders", 1)
    await store.add_segments([segment(0)])
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as killer:
        await killer.execute(_KILL_OTHERS)
    with pytest.raises(Unavailable):
        await store.add_segments([segment(10)])
    await store.add_segments([segment(10)])
    assert [row.base_offset for row in await store.get_segments("orders", 0)] == [0, 10]


async def test_connections_carry_their_name_and_limits(postgres_url: str, opened: OpenStore) -> None:
    given = "?options=-c%20work_mem%3D5MB%20-c%20random_page_cost%3D3"
    store = await opened(f"{postgres_url}{given}", StoreSettings(statement_timeout_s=7))
    async with store.consistent_read() as read:
        connection = read._connection  # type: ignore[attr-defined]
        for setting, value in [
            ("application_name", "astha"), ("statement_timeout", "7s"), ("work_mem", "5MB"), ("random_page_cost", "3"),
        ]:  # fmt: skip
            assert (await connection.exec_driver_sql(f"SHOW {setting}")).scalar() == value


@pytest.fixture
async def own_server(scratch: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A server of this test's own, to crash."""
    with EmbeddedPostgres(scratch / "broken", settings=SERVER_SETTINGS) as server:
        yield server


@pytest.mark.slow
async def test_a_crashed_and_restarted_server(own_server: EmbeddedPostgres, opened: OpenStore) -> None:
    url = own_server.url("postgres")
    assert (await asyncio.to_thread(migrate, url)).state == "current"
    store = await opened(url)
    await store.create_topic("orders", 1)
    await store.add_segment(segment(0))
    own_server.kill()
    with pytest.raises(Unavailable):
        await store.add_segment(segment(10))
    with pytest.raises(Unavailable):
        await open_store(url)
    with pytest.raises(Unavailable):
        await asyncio.to_thread(status, url)
    own_server.start()
    await eventually(lambda: _answers(store), "the pool heals")
    await store.add_segment(segment(10))
    assert [row.base_offset for row in await store.get_segments("orders", 0)] == [0, 10]
