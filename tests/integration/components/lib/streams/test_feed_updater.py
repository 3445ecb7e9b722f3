"""Commits of other processes reach a waiting reader through the registry's stream of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.sources.factory import open_live_source
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import SqliteSource, TailSettings
from components.lib.streams.feed_updater import FeedUpdater
from registry.contract import MetadataStore
from registry.engines import parse_url
from tests.fixtures.databases import Backend
from tests.fixtures.sources import SourceReader as Tailing
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness
from tests.waiting import eventually

SETTINGS = PostgresSourceSettings(reconnect_initial_s=0.02, reconnect_max_s=0.1)


def follow(url: str, harness: StreamHarness, settings: PostgresSourceSettings = SETTINGS) -> FeedUpdater:
    clock = SystemLoopClock()
    return FeedUpdater(open_live_source(url, settings, TailSettings(), clock), harness.change_feed, clock)


@pytest.fixture
async def following(url: str, harness: StreamHarness) -> AsyncIterator[FeedUpdater]:
    async with follow(url, harness) as made:
        yield made


async def test_a_waiting_reader_sees_commits_of_other_processes(
    harness: StreamHarness, following: FeedUpdater, other: MetadataStore
) -> None:
    """The event has the segment, so the reader sends no query."""
    offset = 0
    for _ in range(20):
        waiting = asyncio.create_task(harness.reader.read(TOPIC, 0, offset, wait_s=30))
        await eventually(lambda: bool(harness.change_feed._watches), "a reader that waits")
        drafts = await harness.put_object([3], 0, first=offset)
        await other.add_segments(drafts)
        found = await waiting
        assert (len(found), found.next_offset) == (3, offset + 3)
        offset = found.next_offset


async def test_deletions_and_topics_of_other_processes_are_seen(
    harness: StreamHarness, following: FeedUpdater, other: MetadataStore
) -> None:
    await harness.write(2, 2)
    assert len(await harness.reader.read(TOPIC, 0, 0)) == 4
    assert await harness.cached.get_topic("new") is None
    await other.delete_segments_before(TOPIC, 0, 2)
    await other.create_topic("new", 1)
    await eventually(lambda: not harness.cached.index.lookup(TOPIC, 0, 0), "the segment gone from the index")

    async def known() -> bool:
        return await harness.cached.get_topic("new") is not None

    await eventually(known, "the new topic")


async def test_an_interruption_of_the_stream_wakes_waiting_readers(
    url: str, backend: Backend, harness: StreamHarness, following: FeedUpdater, other: MetadataStore
) -> None:
    if backend == "sqlite":
        await _trim_under_it(url, harness, other)
        return
    waiting = asyncio.create_task(harness.reader.read(TOPIC, 0, 0, wait_s=30))
    await eventually(lambda: bool(harness.change_feed._watches), "a reader that waits")
    drafts = await harness.put_object([3], 0, first=0)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
        )
    await other.add_segments(drafts)
    assert len(await waiting) == 3


async def _trim_under_it(url: str, harness: StreamHarness, other: MetadataStore) -> None:
    """A daemon's source deletes acknowledged changes from the log while the live source reads it."""
    async with Tailing(SqliteSource(url, settings=TailSettings(trim_every_s=0.01))) as daemon:
        offset = 0
        for _ in range(10):
            drafts = await harness.put_object([3], 0, first=offset)
            await other.add_segments(drafts)
            daemon.source.acknowledge(daemon.reached)
            found = await harness.reader.read(TOPIC, 0, offset, wait_s=30)
            assert len(found) == 3
            offset = found.next_offset


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_live_source_leaves_nothing_behind(url: str, harness: StreamHarness) -> None:
    async with follow(url, harness):
        pass
    database = parse_url(url).database
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def gone() -> bool:
            query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
            found = await (await connection.execute(query, [database])).fetchone()
            return found == (0,)

        await eventually(gone, "no slot")


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_configuration_error_is_raised_at_the_start(url: str, harness: StreamHarness) -> None:
    settings = PostgresSourceSettings(publication="missing")
    with pytest.raises(ConfigError, match="missing"):
        async with follow(url, harness, settings):
            pass
