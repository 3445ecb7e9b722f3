"""A standby is promoted: the daemon detects another history, refreshes all components and continues by itself.

The standby may lack the primary's last commits. Components have seen them, and they never happened: only a refresh
can take that back.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from astha.testing import RecordingSubscriber
from registry.embedded_postgres import EmbeddedPostgres
from registry.errors import Unavailable
from registry.models import ConsumerGroup
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.daemons import RunDaemon, Running
from tests.fixtures.servers import MakeServer, MakeStandby, Standby, ask, require_version
from tests.fixtures.sources import slot_of
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def names(subscriber: RecordingSubscriber) -> set[str]:
    return {row.group_id for row in subscriber.rows["consumer_groups"].values() if isinstance(row, ConsumerGroup)}


def heard(subscriber: RecordingSubscriber) -> set[str]:
    return {event.data.group_id for event in subscriber.events if isinstance(event.data, ConsumerGroup)}


async def asked(server: EmbeddedPostgres, query: str, *parameters: object) -> Any:
    return await asyncio.to_thread(ask, server, query, *parameters)


async def take_over(running: Running, proxy: PostgresProxy, primary: EmbeddedPostgres, standby: Standby) -> None:
    """The primary dies, the address leads to the standby, and only then is that promoted."""
    await asyncio.to_thread(primary.kill)
    proxy.lead_to("127.0.0.1", standby.port)
    await running.until(lambda: "standby" in (running.daemon.source.status().detail or ""), "the standby recognised")
    await asyncio.to_thread(standby.promote)


async def test_a_promoted_standby_that_lacks_the_last_commits(
    own_server: EmbeddedPostgres, make_standby: MakeStandby, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    subscriber = RecordingSubscriber("consumer_groups")
    standby = await asyncio.to_thread(make_standby, own_server)
    async with PostgresProxy("127.0.0.1", own_server.port) as proxy:
        url = proxy.url(own_server.url("postgres"))
        running = await run_daemon(url, {"a": subscriber}, lease_s=20.0)
        await running.live()
        store = await opened(own_server.url("postgres"))
        await store.ensure_consumer_group("before")
        await running.agree(store)
        await asyncio.to_thread(standby.catch_up)
        await asyncio.to_thread(standby.cut_off)
        await store.ensure_consumer_group("lost")
        await running.agree(store)
        await take_over(running, proxy, own_server, standby)
        promoted = await opened(standby.url("postgres"))
        await promoted.ensure_consumer_group("after")
        await running.agree(promoted)
        assert names(subscriber) == {"before", "after"}, "what was lost has been taken back"
        await promoted.ensure_consumer_group("streamed")
        await subscriber.until(lambda: "streamed" in heard(subscriber))
        assert subscriber.refreshes == 2
        await running.stop()


async def test_a_failover_slot(
    make_server: MakeServer, make_standby: MakeStandby, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    """Synchronised to the standby, it survives the promotion, and no component has seen what the standby lacks."""
    primary = await asyncio.to_thread(make_server, {"wal_sender_timeout": "5s"})
    await asyncio.to_thread(require_version, primary, 17, "slots for failover")
    subscriber = RecordingSubscriber("consumer_groups")
    standby = await asyncio.to_thread(
        make_standby, primary, {"sync_replication_slots": "on", "hot_standby_feedback": "on"}
    )
    await asked(primary, f"ALTER SYSTEM SET synchronized_standby_slots = '{standby.name}'")
    await asked(primary, "SELECT pg_reload_conf()")
    async with PostgresProxy("127.0.0.1", primary.port) as proxy:
        url = proxy.url(primary.url("postgres"))
        slot = slot_of(url)
        running = await run_daemon(url, {"a": subscriber}, lease_s=20.0)
        await running.live()
        store = await opened(primary.url("postgres"))
        numbers = itertools.count()

        async def synchronised() -> bool:
            await store.ensure_consumer_group(f"before {next(numbers)}")  # the copy becomes good as the slot moves on,
            await asked(primary, "SELECT pg_log_standby_snapshot()")  # beyond such a mark: the server's own come slowly
            query = "SELECT failover AND synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
            return bool(await asked(standby, query, slot))

        await eventually(synchronised, "the slot on the standby", 60)
        await running.agree(store)
        await asyncio.to_thread(standby.catch_up)
        await asyncio.to_thread(standby.cut_off)
        await store.ensure_consumer_group("lost")
        waiting = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"
        await eventually(lambda: asked(primary, waiting), "the primary waiting for its standby")
        await take_over(running, proxy, primary, standby)
        promoted = await opened(standby.url("postgres"))
        await promoted.ensure_consumer_group("after")
        await running.agree(promoted)
        await promoted.ensure_consumer_group("streamed")
        await subscriber.until(lambda: "streamed" in heard(subscriber))
        kept = "SELECT synced AND active FROM pg_replication_slots WHERE slot_name = %s"
        assert await asked(standby, kept, slot), "the slot is the one that came from the primary"
        assert "lost" not in heard(subscriber) | names(subscriber)
        assert subscriber.refreshes == 2, "another timeline is another history, failover slot or not"
        await running.stop()


async def test_a_standby_says_nothing_of_what_its_snapshots_contain(
    own_server: EmbeddedPostgres, make_standby: MakeStandby, opened: OpenStore
) -> None:
    """Its list of running transactions is always empty: a refresh from it would take them for contained."""
    store = await opened(own_server.url("postgres"))
    await store.ensure_consumer_group("before")
    standby = await asyncio.to_thread(make_standby, own_server)
    await asyncio.to_thread(standby.catch_up)
    copy = await opened(standby.url("postgres"))
    async with copy.consistent_read() as read:
        assert [row.group_id for page in [page async for page in read.rows(ConsumerGroup)] for row in page] == [
            "before"
        ]
        with pytest.raises(Unavailable, match="standby"):
            _ = read.visibility
