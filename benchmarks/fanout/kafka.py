"""The Kafka sink against kafka-python's own producer, which sends the same bytes; and whole commits for followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, cast

import msgspec
from kafka import KafkaProducer

from astha.brokers.kafka import close
from astha.clock import SystemLoopClock
from astha.subscribers import Event, MetadataStore, Partition, Position, Row
from astha.testing import FakeRegistry, make_context, make_row
from benchmarks.report import Report, interleaved, rates
from components.kafka_sink import create
from components.kafka_sink.client import KafkaClients
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.subscriber import KafkaSink
from tests.doubles.identity_store import IdentityStore
from tests.kafka_reader import create_topic, read_topic
from tests.servers.kafka import KafkaBroker

TABLE = "partitions"
COMMIT_EVENTS = 100
LINGER_MS = 20  # of kafka-python's producer, so that it fills its batches
PER_CALL = 5_000
"""Events of a delivery: the lane passes on everything that is queued, at most 10,000."""

Record = tuple[bytes, bytes, list[tuple[str, bytes]]]


async def kafka_figures(report: Report, broker: KafkaBroker) -> None:
    events, rounds = report.pick(20_000, 5_000), report.pick(7, 4)
    async with _sink(broker, "tables") as tables, _sink(broker, "transactions") as transactions:
        await _deliver(tables, _commits(0, events))
        records = await asyncio.to_thread(_records, broker)
        producer = await asyncio.to_thread(_producer, broker)

        async def by_table(number: int) -> None:
            await _deliver(tables, commits[number])

        async def by_commit(number: int) -> None:
            await _deliver(transactions, commits[number])

        async def bare(number: int) -> None:
            await asyncio.to_thread(_send, producer, records)

        commits = [_commits(number, events) for number in range(1, rounds + 1)]
        seconds = await interleaved(rounds, tables=by_table, bare=bare, transactions=by_commit)
        await asyncio.to_thread(close, producer)
    _report(report, events, seconds, median([len(value) for _, value, _ in records]))


def _report(report: Report, events: int, seconds: dict[str, list[float]], size: float) -> None:
    ours, theirs = rates(events, seconds["tables"]), rates(events, seconds["bare"])
    ratios = [bare / mine for mine, bare in zip(seconds["tables"], seconds["bare"], strict=True)]
    report.add(
        "kafka_rate_vs_client",
        median(ratios),
        f"changes as Debezium JSON of {size:,.0f} bytes, in commits of {COMMIT_EVENTS}: {ours:,.0f} records per second;"
        f" kafka-python's producer with the same settings, keys, values and headers: {theirs:,.0f} per second",
        at_least=0.8,
    )
    whole = rates(events, seconds["transactions"])
    report.add(
        "kafka_transactions_events_per_s",
        whole,
        f"layout `transactions`, commits of {COMMIT_EVENTS}: {whole / ours:.1f} times the rate of layout `tables`",
        at_least=5 * ours,
    )


async def _deliver(sink: KafkaSink, transactions: Sequence[Sequence[Event[Row]]]) -> None:
    for start in range(0, len(transactions), PER_CALL // COMMIT_EVENTS):
        await sink.on_transactions(transactions[start : start + PER_CALL // COMMIT_EVENTS])


def _send(producer: KafkaProducer, records: Sequence[Record]) -> None:
    for key, value, headers in records:
        producer.send("bare", value=value, key=key, headers=headers)
    producer.flush()


def _records(broker: KafkaBroker) -> list[Record]:
    """What the sink has sent."""
    found = read_topic(broker.address, f"tables.{TABLE}")
    return [(record.key, record.value, list(record.headers)) for record in found]


def _producer(broker: KafkaBroker) -> KafkaProducer:
    """A topic of its own, with as many partitions as the sink's."""
    settings = _settings(broker, "tables")
    create_topic(broker.address, "bare", settings.partitions)
    return KafkaClients(settings, "bare").producer(linger_ms=LINGER_MS)


def _settings(broker: KafkaBroker, layout: str) -> KafkaSinkSettings:
    return KafkaSinkSettings.model_validate(_values(broker, layout))


def _values(broker: KafkaBroker, layout: str) -> dict[str, Any]:
    return {"bootstrap_servers": broker.address, "prefix": layout, "layout": layout}


@asynccontextmanager
async def _sink(broker: KafkaBroker, layout: str) -> AsyncIterator[KafkaSink]:
    context = msgspec.structs.replace(
        make_context(cast("MetadataStore", IdentityStore())),
        clock=SystemLoopClock(),
        component=f"kafka_{layout}",
        tables=frozenset({TABLE}),
    )
    sink = create(_values(broker, layout), context)
    await sink.start()
    sink.resume_at(Position(0), 1)
    try:
        yield sink
    finally:
        await sink.stop()


def _commits(number: int, events: int) -> list[Sequence[Event[Row]]]:
    """Inserts the same rows in each round, so that all rounds send the same bytes but for the positions."""
    registry = FakeRegistry()
    registry.last = Position(1_000_000 + number * events)
    return [
        registry.commit(
            *(
                make_row(Partition, topic=f"orders-{topic}", partition_id=partition, high_watermark=topic)
                for partition in range(COMMIT_EVENTS)
            )
        ).events
        for topic in range(events // COMMIT_EVENTS)
    ]
