"""The MQTT sink against a bare aiomqtt publisher: as many messages in flight, at QoS 1, to the same broker."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import cast

import aiomqtt
import msgspec

from astha.clock import SystemLoopClock
from astha.subscribers import Event, MetadataStore, Partition, Position, Row
from astha.testing import FakeRegistry, make_context, make_row
from benchmarks.report import Report, interleaved, rates
from components.lib.change_formats import FormatSettings, Origin, open_format
from components.mqtt_sink import create
from components.mqtt_sink.subscriber import MqttSink
from components.mqtt_sink.topics import Topics
from tests.doubles.identity_store import IdentityStore
from tests.servers.mosquitto import Mosquitto, MosquittoOptions

IN_FLIGHT = 100
PREFIX = "bench"
COMMIT_EVENTS = 10
PER_CALL = 1_000
"""Events of a delivery: the lane passes on everything that is queued, at most 10,000."""


async def mqtt_figures(report: Report) -> None:
    """Adds the figures of one broker without subscribers: what is measured is the publisher."""
    options = MosquittoOptions(settings={"max_inflight_messages": IN_FLIGHT})
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name, Mosquitto(Path(name), options) as broker:
        await _rates(report, broker)


async def _rates(report: Report, broker: Mosquitto) -> None:
    events = report.pick(20_000, 4_000)
    messages = list(_encoded(FakeRegistry(), events))
    transactions = list(_commits(FakeRegistry(), events))
    rounds = report.pick(6, 3)
    async with _sink(broker) as sink, _bare(broker) as client:

        async def ours(number: int) -> None:
            sink.resume_at(Position(0), 1)  # otherwise these are repetitions, which it does not send
            for start in range(0, len(transactions), PER_CALL // COMMIT_EVENTS):
                await sink.on_transactions(transactions[start : start + PER_CALL // COMMIT_EVENTS])

        async def bare(number: int) -> None:
            await _publish(client, iter(messages))

        seconds = await interleaved(rounds, ours=ours, bare=bare)
        sent = {metric.labels.get("kind"): metric.value for metric in sink.metrics()}
        assert sent["change"] == rounds * events
    size = median([len(payload) for _, payload in messages])
    ratios = [theirs / mine for mine, theirs in zip(seconds["ours"], seconds["bare"], strict=True)]
    report.add(
        "mqtt_rate_vs_client",
        median(ratios),
        f"changes as Debezium JSON of {size:,.0f} bytes: {rates(events, seconds['ours']):,.0f} per second, with content"
        f" type and six user properties each; aiomqtt, same topics and payloads, no properties:"
        f" {rates(events, seconds['bare']):,.0f} per second; {IN_FLIGHT} in flight, QoS 1",
        at_least=0.8,
    )


@asynccontextmanager
async def _sink(broker: Mosquitto) -> AsyncIterator[MqttSink]:
    context = msgspec.structs.replace(
        make_context(cast("MetadataStore", IdentityStore())),
        clock=SystemLoopClock(),
        component="mqtt_sink",
        tables=frozenset({"partitions"}),
    )
    settings = {"url": broker.url, "prefix": PREFIX, "transactions": False, "max_in_flight": IN_FLIGHT}
    sink = create(settings, context)
    await sink.start()
    sink.resume_at(Position(0), 1)
    try:
        yield sink
    finally:
        await sink.stop()


@asynccontextmanager
async def _bare(broker: Mosquitto) -> AsyncIterator[aiomqtt.Client]:
    client = aiomqtt.Client(
        "127.0.0.1",
        broker.port,
        protocol=aiomqtt.ProtocolVersion.V5,
        max_inflight_messages=IN_FLIGHT,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )
    client.pending_calls_threshold = IN_FLIGHT
    async with client:
        yield client


async def _publish(client: aiomqtt.Client, messages: Iterator[tuple[str, bytes]]) -> None:
    async def worker() -> None:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


def _commits(registry: FakeRegistry, events: int) -> Iterator[Sequence[Event[Row]]]:
    for number in range(events // COMMIT_EVENTS):
        rows = [
            make_row(Partition, topic=f"orders-{number % 1_000}", partition_id=partition, high_watermark=number)
            for partition in range(COMMIT_EVENTS)
        ]
        yield registry.commit(*rows).events


def _encoded(registry: FakeRegistry, events: int) -> Iterator[tuple[str, bytes]]:
    format_ = open_format(FormatSettings(), "mqtt")
    topics, origin = Topics(PREFIX, keys=True), Origin(PREFIX, "astha", 1, "postgresql")
    for commit in _commits(registry, events):
        for event in commit:
            message = format_.change(event, origin, 1_700_000_000_000)
            yield topics.change(event.operation.value.lower(), event.data), message.value or b""
