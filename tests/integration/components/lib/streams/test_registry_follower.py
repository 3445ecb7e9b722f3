"""Another process's commits reach a reader that waits, through the registry's own stream of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.sources.factory import open_follower
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import SqliteSource, TailSettings
from components.lib.streams.registry_follower import RegistryFollower
from registry.contract import MetadataStore
from registry.engines import parse_url
from tests.fixtures.databases import Backend
from tests.fixtures.sources import Follower as Tailing
from tests.integration.components.lib.streams.harness import TOPIC, Bench
from tests.waiting import eventually

SETTINGS = PostgresSourceSettings(reconnect_initial_s=0.02, reconnect_max_s=0.1)


def follow(url: str, bench: Bench, settings: PostgresSourceSettings = SETTINGS) -> RegistryFollower:
    clock = SystemLoopClock()
    return RegistryFollower(open_follower(url, settings, TailSettings(), clock), bench.change_feed, clock)


@pytest.fixture
async def following(url: str, bench: Bench) -> AsyncIterator[RegistryFollower]:
    async with follow(url, bench) as made:
        yield made


async def test_a_waiting_reader_sees_what_others_write(
    bench: Bench, following: RegistryFollower, other: MetadataStore
) -> None:
    """And asks the registry nothing: the event brings the segment."""
    offset = 0
    for _ in range(20):
        waiting = asyncio.create_task(bench.reader.read(TOPIC, 0, offset, wait_s=30))
        await eventually(lambda: bool(bench.change_feed._watches), "a reader that waits")
        drafts = await bench.put_object([3], 0, first=offset)
        await other.add_segments(drafts)
        found = await waiting
        assert (len(found), found.next_offset) == (3, offset + 3)
        offset = found.next_offset


async def test_others_deletions_and_topics_are_seen(
    bench: Bench, following: RegistryFollower, other: MetadataStore
) -> None:
    await bench.write(2, 2)
    assert len(await bench.reader.read(TOPIC, 0, 0)) == 4
    assert await bench.cached.get_topic("new") is None
    await other.delete_segments_before(TOPIC, 0, 2)
    await other.create_topic("new", 1)
    await eventually(lambda: not bench.cached.index.lookup(TOPIC, 0, 0), "the segment gone from the index")

    async def known() -> bool:
        return await bench.cached.get_topic("new") is not None

    await eventually(known, "the new topic")


async def test_an_interruption_is_survived_and_wakes_who_waits(
    url: str, backend: Backend, bench: Bench, following: RegistryFollower, other: MetadataStore
) -> None:
    if backend == "sqlite":
        await _trim_under_it(url, bench, other)
        return
    waiting = asyncio.create_task(bench.reader.read(TOPIC, 0, 0, wait_s=30))
    await eventually(lambda: bool(bench.change_feed._watches), "a reader that waits")
    drafts = await bench.put_object([3], 0, first=0)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
        )
    await other.add_segments(drafts)
    assert len(await waiting) == 3


async def _trim_under_it(url: str, bench: Bench, other: MetadataStore) -> None:
    """A daemon acknowledges, and its source deletes what it has acknowledged, whoever else reads the log."""
    async with Tailing(SqliteSource(url, settings=TailSettings(trim_every_s=0.01))) as daemon:
        offset = 0
        for _ in range(10):
            drafts = await bench.put_object([3], 0, first=offset)
            await other.add_segments(drafts)
            daemon.source.acknowledge(daemon.reached)
            found = await bench.reader.read(TOPIC, 0, offset, wait_s=30)
            assert len(found) == 3
            offset = found.next_offset


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_follower_leaves_nothing_behind(url: str, bench: Bench) -> None:
    async with follow(url, bench):
        pass
    database = parse_url(url).database
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def gone() -> bool:
            query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
            found = await (await connection.execute(query, [database])).fetchone()
            return found == (0,)

        await eventually(gone, "no slot")


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_what_a_person_has_to_mend_is_said_at_the_beginning(url: str, bench: Bench) -> None:
    settings = PostgresSourceSettings(publication="missing")
    with pytest.raises(ConfigError, match="missing"):
        async with follow(url, bench, settings):
            pass
