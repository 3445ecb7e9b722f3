"""The Kafka sink against Debezium's engine with a Kafka producer: the same WAL to the same broker, rounds in turn."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from statistics import median
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from benchmarks.fanout.sink_daemon import COMPONENT, SinkJob, serve
from benchmarks.pipeline.debezium import engine
from benchmarks.pipeline.readers import DebeziumReader, Drained, watched_slot
from benchmarks.pipeline.wal import Wal, prepare
from benchmarks.report import Report
from components.kafka_sink.settings import KafkaSinkSettings
from registry.embedded_postgres import EmbeddedPostgres
from tests.kafka_reader import create_topic
from tests.servers.jars import JarsMissing
from tests.servers.kafka import KafkaBroker

ROUNDS = 3
EVENTS = 300_000
COMMIT_EVENTS = 1_000
SERVER = {"max_wal_size": "4GB", "shared_buffers": "256MB"}
TABLE = "segments"
_MAIN = Path(__file__).parent / "debezium" / "KafkaDrain.java"
_LIMIT_S = 600

# Batches, linger and compression are those of our own client. The engine hands over up to 16,384 events at a time, and
# each hand-over is flushed.
_PEER: engine.Settings = {
    **engine.BULK,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "converter.schemas.enable": "false",
    "producer.acks": "all",
    "producer.enable.idempotence": "true",
    "producer.compression.type": "lz4",
    "producer.batch.size": 262_144,
    "producer.linger.ms": 20,
    "producer.buffer.memory": 67_108_864,
}


def debezium_figures(report: Report, broker: KafkaBroker) -> None:
    """Does nothing in a quick run: it takes minutes."""
    if report.quick:
        return
    try:
        engine.classpath(_MAIN)
    except JarsMissing as error:
        _add(report, math.nan, math.nan, f"not measured: {error}", f"not measured: {error}")
        return
    with EmbeddedPostgres(settings=SERVER) as server:
        prepare(server)
        wal = Wal(server, "peer")
        wal.write(EVENTS, COMMIT_EVENTS)
        ours, theirs = [], []
        for number in range(ROUNDS):
            theirs.append(drain_by_debezium(wal, broker, f"debezium{number}"))
            ours.append(drain_by_sink(wal, broker, f"astha{number}"))
        wal.close()
    _report(report, ours, theirs)


def drain_by_sink(wal: Wal, broker: KafkaBroker, prefix: str) -> Drained:
    """Measured to the acknowledgement of the last record."""
    sink = _sink_settings(broker, prefix)
    create_topic(broker.address, sink.topic_of(TABLE), sink.partitions)
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    with watched_slot(wal, [COMPONENT]) as (slot, walsender):
        job = SinkJob(wal.url(), slot, {"bootstrap_servers": broker.address, "prefix": prefix}, wal.written)
        process = processes.Process(target=serve, args=(job, theirs), daemon=True)
        process.start()
        theirs.close()
        answer = _received(ours, process)
    answer["repeated"] = _repeated(broker, sink.topic_of(TABLE), wal.written)
    return Drained.by(walsender, wal.written, answer["last_at"], answer["cpu"], answer)


def drain_by_debezium(wal: Wal, broker: KafkaBroker, prefix: str) -> Drained:
    """Measured to the acknowledgement of its last batch."""
    topic = f"{prefix}.public.{TABLE}"
    create_topic(broker.address, topic, _sink_settings(broker, prefix).partitions)
    settings = {**_PEER, "topic.prefix": prefix, "producer.bootstrap.servers": broker.address}
    with watched_slot(wal) as (slot, walsender):
        answer = DebeziumReader(wal, slot, settings, expect=wal.written, main=_MAIN).finish()
    answer["repeated"] = _repeated(broker, topic, wal.written)
    return Drained.by(walsender, answer["events"], answer["last_at"], answer["cpu"], answer)


def _sink_settings(broker: KafkaBroker, prefix: str) -> KafkaSinkSettings:
    return KafkaSinkSettings.model_validate({"bootstrap_servers": broker.address, "prefix": prefix})


def _received(ours: Any, process: Any) -> dict[str, Any]:
    try:
        if not ours.poll(_LIMIT_S):
            raise SystemExit(f"the daemon has not sent all records after {_LIMIT_S} s")
        answer: dict[str, Any] = ours.recv()
    except EOFError as error:
        raise SystemExit("the daemon ended before it had sent all records") from error
    finally:
        process.join(30)
        process.kill()
    return answer


def _repeated(broker: KafkaBroker, topic: str, expected: int) -> int:
    """Returns how many records were sent twice: delivery is at least once."""
    with KafkaConsumer(bootstrap_servers=broker.address, group_id=None) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        found = sum(consumer.end_offsets(partitions).values())
    if found < expected:
        raise SystemExit(f"topic {topic} has {found:,} records instead of {expected:,}")
    return int(found - expected)


def _report(report: Report, ours: list[Drained], theirs: list[Drained]) -> None:
    rate, their_rate = (median(drained.rate for drained in drains) for drains in (ours, theirs))
    cpu, their_cpu = (median(drained.cpu for drained in drains) for drains in (ours, theirs))
    peak, their_peak = (median(drained.details["peak_mb"] for drained in drains) for drains in (ours, theirs))
    warm, warm_cpu = (
        median(drained.details[name] for drained in theirs) for name in ("second_half_rate", "second_half_cpu_us")
    )
    _add(
        report,
        rate / their_rate,
        cpu / their_cpu,
        f"{EVENTS:,} inserts in transactions of {COMMIT_EVENTS:,} to Kafka as JSON, from the start of streaming to the "
        f"last acknowledgement: {rate:,.0f}/s ({_range(ours)}) over {their_rate:,.0f}/s ({_range(theirs)}) of Debezium "
        f"{engine.VERSION} with Kafka's producer ({warm:,.0f}/s in its second half)",
        f"{cpu:.2f} s ({cpu / EVENTS * 1e6:.0f} us an event) over {their_cpu:.2f} s "
        f"({their_cpu / EVENTS * 1e6:.0f} us, {warm_cpu:.0f} us in its second half); "
        f"peak RSS {peak:.0f} MB over {their_peak:.0f} MB; records repeated in all rounds: "
        f"{_repetitions(ours):,} over {_repetitions(theirs):,}",
    )


def _repetitions(drains: list[Drained]) -> int:
    return sum(drained.details["repeated"] for drained in drains)


def _range(drains: list[Drained]) -> str:
    rates = [drained.rate for drained in drains]
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def _add(report: Report, rate: float, cpu: float, about_rate: str, about_cpu: str) -> None:
    report.add("rate_vs_debezium_server", rate, about_rate, at_least=2)
    report.add("cpu_vs_debezium_server", cpu, about_cpu, at_most=1 / 3)
