"""From the registry to a subscriber, through a whole daemon, on both databases."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from astha.events import Transaction
from astha.lanes.state import LaneState
from astha.sources.continuity import Continuity
from astha.sources.contract import Gap
from astha.subscribers import ComponentContext, Topic
from astha.testing import RecordingSubscriber
from components.mqtt_sink import create
from components.mqtt_sink.subscriber import MqttSink
from registry.contract import MetadataStore
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.daemons import QUICK, RunDaemon, Running
from tests.integration.astha.processes import Astha, add_topic, drop_slots, prepared
from tests.integration.components.mqtt_sink.listener import TABLES, Listener, sink_context
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually, eventually_now


class Follower:
    """What a follower makes of the records."""

    def __init__(self) -> None:
        self._continuity = Continuity(TABLES)
        self._taken = 0
        self.transactions: list[Transaction] = []
        self.gaps = 0

    def take(self, listener: Listener, prefix: str) -> list[str]:
        """Returns the names of all topics that were created, in order."""
        records = listener.on(f"{prefix}/transactions")
        for message in records[self._taken :]:
            for batch in self._continuity.take(message.payload):
                self.gaps += isinstance(batch, Gap)
                if isinstance(batch, list):
                    self.transactions += batch
        self._taken = len(records)
        rows = [event.data for found in self.transactions for event in found.events]
        return [row.name for row in rows if isinstance(row, Topic)]


def context_of(store: MetadataStore, running: list[Running]) -> ComponentContext:
    return msgspec.structs.replace(
        sink_context(), store=store, component_states=lambda: running[0].daemon.component_states() if running else []
    )


def sink_of(store: MetadataStore, url: str, prefix: str, running: list[Running], timeout_s: float = 5.0) -> MqttSink:
    settings = {"url": url, "prefix": prefix, "heartbeat_s": 0.05, "timeout_s": timeout_s}
    return create(settings, context_of(store, running))


async def test_commits_arrive_in_order_and_states_are_retained(
    url: str, store: MetadataStore, run_daemon: RunDaemon, mosquitto: Mosquitto, prefix: str
) -> None:
    started: list[Running] = []
    async with Listener(mosquitto, f"{prefix}/#") as listener:
        sink = sink_of(store, mosquitto.url, prefix, started)
        other = RecordingSubscriber("topics")
        started.append(await run_daemon(url, {"mqtt_sink": sink, "other": other}))
        await started[0].live()
        follower = Follower()
        await listener.until(f"{prefix}/transactions", 2)
        follower.take(listener, prefix)
        names = [f"t{number}" for number in range(50)]
        for name in names:
            await store.create_topic(name, 2)
        await listener.until(f"{prefix}/topics/insert/+", 50)
        await listener.until(f"{prefix}/partitions/insert/+/+", 100)
        await eventually(lambda: follower.take(listener, prefix) == names, "the follower has all")
        changes = listener.on(f"{prefix}/topics/insert/+")
        assert [message.json()["after"]["name"] for message in changes] == names
        assert [len(found.events) for found in follower.transactions] == [3] * 50
        assert follower.gaps == 1  # of the first refresh
        assert listener.on(f"{prefix}/refresh")[-1].json()["state"] == "END"

        def shown(component: str) -> str | None:
            last = listener.last(f"{prefix}/components/{component}")
            return None if last is None else last.json()["state"]

        await eventually(lambda: shown("other") == shown("mqtt_sink") == "live", "live states")
        await started[0].stop()
        await eventually(lambda: shown("other") == shown("mqtt_sink") == "stopped", "stopped states")
        last = listener.last(f"{prefix}/daemons/leaders")
        assert last is not None
        assert last.json()["state"] == "offline"
        assert last.json()["epoch"] is not None  # not the last will


async def test_a_restart_continues_without_a_gap(
    url: str, store: MetadataStore, run_daemon: RunDaemon, mosquitto: Mosquitto, prefix: str
) -> None:
    async with Listener(mosquitto, f"{prefix}/transactions") as listener:
        follower = Follower()
        running = await run_daemon(url, {"mqtt_sink": sink_of(store, mosquitto.url, prefix, [])})
        await running.live()
        await listener.until(f"{prefix}/transactions", 2)
        await store.create_topic("before", 1)
        await eventually(lambda: follower.take(listener, prefix) == ["before"], "the first")
        await running.stop()
        await store.create_topic("between", 1)
        running = await run_daemon(url, {"mqtt_sink": sink_of(store, mosquitto.url, prefix, [])})
        await eventually(lambda: follower.take(listener, prefix) == ["before", "between"], "the second")
        assert follower.gaps == 1


async def test_an_outage_is_survived_and_other_lanes_work(
    url: str, store: MetadataStore, run_daemon: RunDaemon, mosquitto: Mosquitto, prefix: str
) -> None:
    hold = QUICK.model_copy(update={"on_exhausted": "hold", "breaker_failures": 3, "backoff_max_s": 0.2})
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        sink = sink_of(store, f"mqtt://127.0.0.1:{proxy.port}", prefix, [])
        other = RecordingSubscriber("topics")
        running = await run_daemon(url, {"mqtt_sink": sink, "other": other}, policies={"mqtt_sink": hold})
        await running.live()
        follower = Follower()
        await store.create_topic("before", 1)
        await eventually(lambda: follower.take(listener, prefix) == ["before"], "before")
        proxy.refuse()
        names = [f"t{number}" for number in range(30)]
        for name in names:
            await store.create_topic(name, 1)
        await running.agree(store, "other")
        await running.until(lambda: running.lane("mqtt_sink").state is LaneState.HELD, "the sink is held")
        reason = running.lane("mqtt_sink").status.reason or ""
        assert "MQTT broker" in reason
        proxy.accept()
        await eventually(lambda: follower.take(listener, prefix) == ["before", *names], "all of them", 60)
        assert follower.gaps == 1
        assert running.lane("other").state is LaneState.LIVE


@pytest.fixture
def astha(url: str, tmp_path: Path) -> Iterator[Astha]:
    with prepared(url, tmp_path) as command:
        yield command
    if not url.startswith("sqlite"):
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


@pytest.mark.slow
async def test_the_last_will_of_a_daemon_that_is_killed(astha: Astha, mosquitto: Mosquitto, prefix: str) -> None:
    (astha.directory / "subscriptions.yaml").write_text(
        "components:\n"
        "  mqtt_sink:\n"
        "    tables: [topics, partitions]\n"
        f"    settings: {{url: '{mosquitto.url}', prefix: {prefix}, keepalive_s: 5}}\n"
    )
    async with Listener(mosquitto, f"{prefix}/#") as listener:

        def state() -> str | None:
            last = listener.last(f"{prefix}/daemons/+")
            return None if last is None else last.json()["state"]

        daemon = astha.run()
        await asyncio.to_thread(daemon.until_ready)
        await eventually(lambda: state() == "online", "online")
        await asyncio.to_thread(add_topic, astha.url, "orders")
        await listener.until(f"{prefix}/topics/insert/orders", 1)
        daemon.send(signal.SIGKILL)
        await eventually(lambda: state() == "offline", "the last will")
        await asyncio.to_thread(add_topic, astha.url, "later")
        second = astha.run()
        await listener.until(f"{prefix}/topics/insert/later", 1)
        await eventually(lambda: state() == "online", "online again")
        second.send(signal.SIGTERM)
        assert await asyncio.to_thread(second.ended) == 0
        await eventually(lambda: state() == "offline", "offline")
        await eventually(lambda: _stopped(listener, prefix), "stopped")


def _stopped(listener: Listener, prefix: str) -> bool:
    last = listener.last(f"{prefix}/components/mqtt_sink")
    return last is not None and last.json()["state"] == "stopped"
