"""Fan-out: clients that know nothing of Astha read a change of the registry from Kafka and from MQTT."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings, Subscriber
from astha.subscribers.loader import load_component
from components.commands.demo.daemon import PATIENCE_S, running, until
from components.commands.demo.stage import Stage
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.migrate import migrate

PREFIX, NAME = "demo", "clicks"
TABLES = frozenset({"topics"})


async def show(url: str, directory: Path, stage: Stage) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with ExitStack() as servers:
        kafka = _started("Kafka", lambda: _kafka(directory, servers), stage)
        mqtt = _started("Mosquitto", lambda: _mosquitto(directory, servers), stage)
        settings: dict[str, dict[str, Any]] = {}
        readers: dict[str, Callable[[], str]] = {}
        subscribed = Event()  # MQTT brings only what comes after the subscription
        if kafka is not None:
            settings["kafka_sink"] = {"bootstrap_servers": kafka, "prefix": PREFIX}
            readers["Kafka, topic demo.topics, Debezium envelope"] = lambda: read_kafka(kafka)
        if mqtt is not None:
            settings["mqtt_sink"] = {"url": mqtt, "prefix": PREFIX, "format": "json", "transactions": False}
            of_topic = "MQTT, topic demo/topics/insert/clicks, plain JSON"
            readers[of_topic] = lambda: asyncio.run(read_mqtt(mqtt, subscribed))
        if not settings:
            return
        await asyncio.to_thread(migrate, url)
        store = await open_store(url)
        try:
            sinks = {name: _sink(name, chosen, store, url) for name, chosen in settings.items()}
            async with running(url, store, sinks, stage) as lanes:
                await until(lambda: all(lane.state == "live" for lane in lanes))
                reading = {name: asyncio.create_task(asyncio.to_thread(read)) for name, read in readers.items()}
                await until(lambda: mqtt is None or subscribed.is_set())
                await store.create_topic(NAME, 3)
                for name, task in reading.items():
                    stage.say(f"{name}:\n  {await task}")
        finally:
            await store.close()


def _sink(name: str, settings: dict[str, Any], store: MetadataStore, url: str) -> Subscriber:
    context = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(), component=name, tables=TABLES)
    return load_component(name, settings, context)


def _started(name: str, start: Callable[[], str], stage: Stage) -> str | None:
    """Returns the broker's address, or None if it can't be had; then says why."""
    try:
        address = start()
    except Exception as error:
        stage.say(f"{name} can't be started, so its part is left out: {error}")
        return None
    stage.say(f"{name} started: {address}")
    return address


def _kafka(directory: Path, servers: ExitStack) -> str:
    from tests.servers.kafka import KafkaBroker

    return servers.enter_context(KafkaBroker(directory / "kafka")).address


def _mosquitto(directory: Path, servers: ExitStack) -> str:
    from tests.servers.mosquitto import Mosquitto

    return servers.enter_context(Mosquitto(directory / "mosquitto")).url


def read_kafka(address: str) -> str:
    """A consumer as any program would write it. Returns the first change of the topic as text."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        f"{PREFIX}.topics",
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    with closing(consumer):
        record = next(iter(consumer), None)
    if record is None:
        raise RuntimeError(f"no record arrived within {PATIENCE_S:g} s")
    envelope = json.loads(record.value)
    return f"op={envelope['op']} after={json.dumps(envelope['after'])}"


async def read_mqtt(url: str, subscribed: Event) -> str:
    """A subscriber as any program would write it. Returns the first change as text."""
    import aiomqtt

    parts = urlsplit(url)
    async with asyncio.timeout(PATIENCE_S), aiomqtt.Client(parts.hostname or "", parts.port or 1883) as client:
        await client.subscribe(f"{PREFIX}/topics/#", qos=1)
        subscribed.set()
        async for message in client.messages:
            return f"{message.topic} {bytes(message.payload).decode()}"
    raise RuntimeError("the broker has closed the connection")
