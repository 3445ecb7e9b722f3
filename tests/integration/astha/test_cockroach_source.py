"""The source of a CockroachDB registry, on the cluster of `make cockroach`: what the contract leaves out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from astha.clock import SystemLoopClock
from astha.events import Operation
from astha.preflight.cockroach_checks import cluster_checks
from astha.preflight.results import Verdict
from astha.settings.registry import conninfo_of
from astha.sources.cockroachdb import CockroachLiveSource, CockroachSource
from astha.sources.cockroachdb.cluster import connected, gc_ttl_s
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.models import Topic
from registry.position import Position
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.sources import EVERYTHING, SourceReader, begin_changefeed, postgres_settings

pytestmark = pytest.mark.long


@pytest.fixture
async def store(cockroach_url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(cockroach_url)
    yield store
    await store.close()


def source_at(url: str, store: MetadataStore, group: str = "astha") -> CockroachSource:
    return CockroachSource(conninfo_of(parse_url(url)), store, postgres_settings(url), SystemLoopClock(), group)


async def execute(url: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo_of(parse_url(url)), autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement.encode())


def topics(reader: SourceReader) -> list[str]:
    return [event.data.name for event in reader.events if isinstance(event.data, Topic)]


async def test_the_first_start_is_a_gap_and_the_next_one_continues(cockroach_url: str, store: MetadataStore) -> None:
    async with SourceReader(source_at(cockroach_url, store)) as first:
        await first.until(lambda: bool(first.starts), "the start")
        await store.create_topic("a", 1)
        await first.reach(await store.position())
        assert first.gaps[0] == "first start on this registry"  # more follow while the tables are a second old
        first.source.acknowledge(first.transactions[-1].position)
    await store.create_topic("b", 1)
    async with SourceReader(source_at(cockroach_url, store)) as second:
        await second.reach(await store.position())
    assert second.gaps == []
    assert topics(second) == ["b"]


async def test_each_group_has_a_position_of_its_own(cockroach_url: str, store: MetadataStore) -> None:
    for group in ("one", "two"):
        async with SourceReader(source_at(cockroach_url, store, group)) as reader:
            await reader.until(lambda: bool(reader.starts), "the start")
            assert len(reader.gaps) == 1


async def test_truncate_is_a_gap_and_the_stream_goes_on(cockroach_url: str, store: MetadataStore) -> None:
    await begin_changefeed(cockroach_url)
    async with SourceReader(source_at(cockroach_url, store)) as reader:
        await store.ensure_consumer_group("readers")
        await reader.reach(await store.position())
        await execute(cockroach_url, "TRUNCATE consumer_offsets")
        await reader.until(lambda: bool(reader.gaps), "the gap")
        await reader.until(lambda: len(reader.starts) > 1, "the next start")
        await store.create_topic("after", 1)
        await reader.until(lambda: "after" in topics(reader), "a change after it")
    assert "truncated" in reader.gaps[0]


async def test_a_change_of_the_schema_is_a_gap(cockroach_url: str, store: MetadataStore) -> None:
    await begin_changefeed(cockroach_url)
    async with SourceReader(source_at(cockroach_url, store)) as reader:
        await store.create_topic("before", 1)
        await reader.reach(await store.position())
        await execute(cockroach_url, "ALTER TABLE topics ADD COLUMN added INT8 DEFAULT 7")
        try:
            await reader.until(lambda: bool(reader.gaps), "the gap")
            await store.create_topic("after", 1)
            await reader.until(lambda: "after" in topics(reader), "a change after it")
        finally:
            await execute(cockroach_url, "ALTER TABLE topics DROP COLUMN added")
    assert "schema" in reader.gaps[0]
    assert topics(reader)[0] == "before"


async def test_history_that_is_garbage_collected_is_a_gap(cockroach_url: str, store: MetadataStore) -> None:
    """The cursor is older than the database, whose history therefore does not reach back to it."""
    await begin_changefeed(cockroach_url)
    day_ns = 24 * 3600 * 10**9
    old = Position(await store.position() - 400 * day_ns)
    recorded = await store.get_source_identity("changefeed:astha")
    assert recorded is not None
    await store.record_source_identity("changefeed:astha:position", f"{recorded.identity}@{old}")
    async with SourceReader(source_at(cockroach_url, store)) as reader:
        await reader.until(lambda: bool(reader.gaps), "the gap")
        await reader.until(lambda: reader.starts[-1] > old, "the next start")
        await store.create_topic("after", 1)
        await reader.until(lambda: "after" in topics(reader), "a change after it")


async def test_another_history_is_a_gap(cockroach_url: str, store: MetadataStore) -> None:
    await begin_changefeed(cockroach_url)
    await store.record_source_identity("changefeed:astha", "another cluster/00000000")
    async with SourceReader(source_at(cockroach_url, store)) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
    assert "another cluster" in reader.gaps[0]


async def test_a_lost_connection_loses_nothing_and_repeats_what_is_not_acknowledged(
    cockroach_url: str, store: MetadataStore
) -> None:
    await begin_changefeed(cockroach_url)
    url = parse_url(cockroach_url)
    assert url.host is not None
    async with PostgresProxy(url.host, url.port or 26257) as proxy:
        async with SourceReader(source_at(proxy.url(cockroach_url), store)) as reader:
            for number in range(12):
                await store.create_topic(f"t{number}", 1)
                if number % 4 == 3:
                    await reader.until(lambda: bool(reader.starts), "the start")
                    proxy.cut()
            await reader.reach(await store.position())
        whole = {transaction.position: transaction for transaction in reader.transactions}
        assert all(one == whole[one.position] for one in reader.transactions), "repeated as it was"
        assert list(whole) == sorted(whole)
        assert list(dict.fromkeys(topics(reader))) == [f"t{number}" for number in range(12)]
        assert len(reader.starts) > 1
        assert reader.gaps == []


async def test_the_status_compares_the_position_with_the_garbage_collection(
    cockroach_url: str, store: MetadataStore
) -> None:
    await begin_changefeed(cockroach_url)
    async with SourceReader(source_at(cockroach_url, store)) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        status = reader.source.status()
        assert (status.connected, status.wal_status, status.unit) == (True, "reserved", "nanoseconds")
        assert status.server is not None
        assert status.server >= status.acknowledged
    async with connected(conninfo_of(parse_url(cockroach_url))) as connection:
        assert await gc_ttl_s(connection, "public", EVERYTHING) > 0


async def test_the_live_source_begins_with_a_gap_and_follows(cockroach_url: str, store: MetadataStore) -> None:
    live = CockroachLiveSource(
        conninfo_of(parse_url(cockroach_url)), postgres_settings(cockroach_url), SystemLoopClock()
    )
    seen: list[Operation] = []
    stream = live.stream(frozenset({"topics"}))
    kinds = [type(await anext(stream)).__name__ for _ in range(2)]
    assert kinds == ["Gap", "Started"]
    await store.create_topic("followed", 1)
    async for batch in stream:
        if isinstance(batch, list):  # it begins shortly before now: changes of another test may come first
            events = [event for transaction in batch for event in transaction.events]
            seen += [event.operation for event in events if getattr(event.data, "name", "") == "followed"]
        if seen:
            break
    await stream.aclose()
    assert seen == [Operation.INSERT]


async def test_the_preflight_names_what_the_cluster_does(cockroach_url: str, store: MetadataStore) -> None:
    settings = postgres_settings(cockroach_url)
    results = await cluster_checks(
        conninfo_of(parse_url(cockroach_url)), settings, frozenset({"topics"}), frozenset(), follows=False
    )
    found = {result.check: result for result in results}
    assert [result for result in results if result.verdict in (Verdict.PROBLEM, Verdict.UNKNOWN)] == []
    assert "first mark" in found["changefeed"].detail
    assert "gc.ttlseconds" in found["history"].detail
    assert "target_duration" in found["closed timestamps"].detail


async def test_the_preflight_names_missing_privileges(cockroach_url: str, store: MetadataStore) -> None:
    user = "astha_test_reader"
    await execute(cockroach_url, f"CREATE USER IF NOT EXISTS {user}")
    url = parse_url(cockroach_url).set(username=user, password=None)
    results = await cluster_checks(
        conninfo_of(url), postgres_settings(cockroach_url), frozenset({"topics"}), frozenset(), follows=False
    )
    found = {result.check: result for result in results}
    assert found["table privileges"].verdict is Verdict.PROBLEM
    assert "SELECT" in found["table privileges"].detail
    assert found["changefeed"].verdict in (Verdict.PROBLEM, Verdict.UNKNOWN)
