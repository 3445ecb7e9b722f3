"""A whole daemon: registry, lanes, sink, broker, consumer; on both databases."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.events import Transaction
from astha.lanes.state import LaneState
from astha.sources.continuity import Continuity
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import RecordingSubscriber
from components.kafka_sink import create
from components.kafka_sink.subscriber import KafkaSink
from registry.contract import MetadataStore
from tests.fixtures.daemons import RunDaemon, Running, rows_of
from tests.kafka_reader import materialised, read_topic
from tests.samples import TABLE
from tests.servers.kafka import KafkaBroker

TABLES = frozenset({"topics", "partitions", "tables", "table_metadata"})
POLICY = LanePolicy(
    backoff_initial_s=0.01, backoff_max_s=0.2, delivery_timeout_s=5.0, breaker_reset_s=0.2, health_interval_s=0.3,
    health_timeout_s=3.0, drain_timeout_s=3.0,
)  # fmt: skip


def sink_for(store: MetadataStore, broker: KafkaBroker, prefix: str, **settings: object) -> KafkaSink:
    context = ComponentContext(
        store,
        SystemLoopClock(),
        SecretStr("sqlite:///registry.db"),
        LakeSettings(),
        component="kafka_sink",
        tables=TABLES,
    )
    chosen = {
        "bootstrap_servers": broker.address, "prefix": prefix, "acknowledge_timeout_s": 1.0, "request_timeout_s": 1.0,
        "connect_timeout_s": 1.0, "outage_tolerance_s": 0.0, **settings,
    }  # fmt: skip
    return create(chosen, context)


async def start(
    run_daemon: RunDaemon, url: str, store: MetadataStore, broker: KafkaBroker, prefix: str, holder: str = "one"
) -> Running:
    subscribers = {"kafka_sink": sink_for(store, broker, prefix), "other": RecordingSubscriber(*TABLES)}
    return await run_daemon(url, subscribers, policy=POLICY, holder=holder)


async def converged(daemon: Running, store: MetadataStore, broker: KafkaBroker, prefix: str) -> None:
    async def same() -> bool:
        await asyncio.sleep(0.2)  # reading topics is heavy
        found = await asyncio.to_thread(materialised, broker.address, prefix, TABLES)
        return found == await rows_of(store, TABLES)

    await daemon.until(same, "topics that hold the registry's rows")


async def change(store: MetadataStore, name: str) -> None:
    await store.create_topic(name, 3)
    await store.create_table("db", name, "/lake/" + name, TABLE)


async def test_from_the_registry_to_a_consumer(
    run_daemon: RunDaemon, url: str, store: MetadataStore, kafka: KafkaBroker, topic_prefix: str
) -> None:
    await change(store, "before")
    daemon = await start(run_daemon, url, store, kafka, topic_prefix)
    await daemon.live()
    await change(store, "during")
    await store.delete_topic("before")
    await converged(daemon, store, kafka, topic_prefix)
    await daemon.stop()
    await change(store, "away")
    again = await start(run_daemon, url, store, kafka, topic_prefix, holder="two")
    await converged(again, store, kafka, topic_prefix)
    await again.stop()


async def test_commits_reach_a_follower(
    run_daemon: RunDaemon, url: str, store: MetadataStore, kafka: KafkaBroker, topic_prefix: str
) -> None:
    sink = sink_for(store, kafka, topic_prefix, layout="transactions", heartbeat_s=0.05)
    daemon = await run_daemon(url, {"kafka_sink": sink}, policy=POLICY)
    await daemon.live()
    await change(store, "one")
    await change(store, "two")

    def received() -> list[Transaction]:
        follower = Continuity(TABLES)
        records = read_topic(kafka.address, f"{topic_prefix}.transactions")
        batches = [batch for record in records for batch in follower.take(record.value)]
        return [one for batch in batches if isinstance(batch, list) for one in batch]

    async def complete() -> bool:
        return len(await asyncio.to_thread(received)) == 4

    await daemon.until(complete, "four transactions at a follower")
    await daemon.stop()
    tables = [sorted(event.table for event in transaction.events) for transaction in received()]
    assert tables == 2 * [["partitions"] * 3 + ["topics"], ["table_metadata", "tables"]]


@pytest.mark.slow
async def test_a_broker_that_is_away_for_long_opens_this_circuit_only(
    run_daemon: RunDaemon, url: str, store: MetadataStore, breakable_kafka: KafkaBroker, topic_prefix: str
) -> None:
    daemon = await start(run_daemon, url, store, breakable_kafka, topic_prefix)
    await daemon.live()
    await change(store, "before")
    await converged(daemon, store, breakable_kafka, topic_prefix)
    breakable_kafka.kill()
    await change(store, "lost")
    await store.delete_topic("before")
    await daemon.until(lambda: daemon.lane("kafka_sink").state is LaneState.BROKEN, "an open circuit")
    await daemon.agree(store, "other")
    assert daemon.lane("other").state is LaneState.LIVE
    await change(store, "later")
    breakable_kafka.start()
    await daemon.live("kafka_sink")
    await converged(daemon, store, breakable_kafka, topic_prefix)
    await daemon.stop()
