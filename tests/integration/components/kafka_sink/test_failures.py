"""Brokers that are killed, hang, are full or slow, or lose a topic."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from astha.events import Transaction
from astha.events.stream_records import TransactionRecord, decode_record
from astha.subscribers import LakeTable, Retry
from astha.testing import deliver, make_row
from components.kafka_sink.errors import BrokerUnusable, NotAcknowledged, SendFailed, TopicUnusable
from components.kafka_sink.subscriber import KafkaSink, TransactionSink
from tests.doubles.proxy import TcpProxy
from tests.fixtures.kafka import MakeKafka
from tests.integration.components.kafka_sink.harness import Harness
from tests.kafka_reader import delete_topic, read_topic
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually

IMPATIENT: dict[str, Any] = {
    "acknowledge_timeout_s": 1.0,
    "request_timeout_s": 1.0,
    "connect_timeout_s": 1.0,
    "outage_tolerance_s": 0,
}


@pytest.fixture
def harness(breakable_kafka: KafkaBroker, topic_prefix: str) -> Harness:
    return Harness(breakable_kafka.address, topic_prefix)


async def deliver_at_last(sink: KafkaSink, *transactions: Transaction) -> int:
    """Retries as a lane does, and returns how often it failed."""
    for failures in range(200):
        try:
            await deliver(sink, *transactions)
        except Retry:
            await asyncio.sleep(0.05)
        else:
            return failures
    raise AssertionError("200 attempts failed")


def sizes_by_key(harness: Harness) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for record in read_topic(harness.address, f"{harness.prefix}.tables"):
        found.setdefault(record.key, []).append(msgspec.json.decode(record.value)["after"]["total_size"])
    return found


def growing(harness: Harness, count: int) -> Sequence[Transaction]:
    """Commits that change the same three rows, so that their order shows."""
    return [
        harness.registry.commit(*(make_row(LakeTable, id=n, total_size=size) for n in range(3)))
        for size in range(count)
    ]


@pytest.mark.slow
async def test_a_broker_killed_between_records_loses_duplicates_and_reorders_nothing(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    transactions = growing(harness, 600)
    async with harness.started(**IMPATIENT) as sink:
        delivering = asyncio.create_task(_deliver_in_batches(sink, transactions))
        await eventually(lambda: _records(sink) > 100, "records on the broker")
        breakable_kafka.restart()
        await delivering
    assert sizes_by_key(harness) == {b'{"id":%d}' % n: list(range(600)) for n in range(3)}


async def _deliver_in_batches(sink: KafkaSink, transactions: Sequence[Transaction]) -> None:
    for start in range(0, len(transactions), 10):
        await deliver_at_last(sink, *transactions[start : start + 10])


def _records(sink: KafkaSink) -> float:
    return next(metric.value for metric in sink.metrics() if metric.name == "records")


def _connected(sink: KafkaSink) -> float:
    return next(metric.value for metric in sink.metrics() if metric.name == "broker_connected")


async def test_what_a_hanging_broker_did_not_acknowledge_is_not_sent_twice(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    async with harness.started(**IMPATIENT) as sink:
        (first, second) = growing(harness, 2)
        await deliver(sink, first)
        breakable_kafka.pause()
        with pytest.raises(NotAcknowledged, match=r"3 records are not acknowledged after 1 s"):
            await deliver(sink, second)
        assert _connected(sink)
        with pytest.raises(BrokerUnusable):
            await sink.on_health()
        assert not _connected(sink)
        breakable_kafka.resume()
        await deliver_at_last(sink, second)
        await eventually(lambda: _healthy(sink), "a healthy sink")
        assert _connected(sink)
    assert sizes_by_key(harness) == {b'{"id":%d}' % n: [0, 1] for n in range(3)}


async def test_a_cancelled_delivery_ends_and_its_records_are_not_sent_twice(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    async with harness.started(acknowledge_timeout_s=1_000) as sink:
        (first, second) = growing(harness, 2)
        await deliver(sink, first)
        breakable_kafka.pause()
        delivering = asyncio.create_task(deliver(sink, second))
        await asyncio.sleep(0.3)
        delivering.cancel()
        with pytest.raises((asyncio.CancelledError, NotAcknowledged)):
            await delivering
        breakable_kafka.resume()
        await deliver_at_last(sink, second)
    assert sizes_by_key(harness) == {b'{"id":%d}' % n: [0, 1] for n in range(3)}


async def _healthy(sink: KafkaSink) -> bool:
    try:
        return await sink.on_health()
    except Retry:
        return False


@pytest.mark.slow
async def test_a_short_outage_is_tolerated_and_a_long_one_is_reported(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    async with harness.started(connect_timeout_s=0.5, outage_tolerance_s=1.0) as sink:
        breakable_kafka.kill()
        assert await sink.on_health()
        await eventually(lambda: _unhealthy(sink), "an outage that lasts too long")
        with pytest.raises(BrokerUnusable, match="nothing listens at"):
            await sink.on_health()
        breakable_kafka.start()
        await eventually(lambda: _healthy(sink), "a healthy sink")


async def _unhealthy(sink: KafkaSink) -> bool:
    return not await _healthy(sink)


@pytest.mark.slow
async def test_failed_connections_leave_no_sockets_and_threads(harness: Harness, breakable_kafka: KafkaBroker) -> None:
    async with harness.started(connect_timeout_s=0.3, outage_tolerance_s=0) as sink:
        breakable_kafka.kill()
        assert not await _healthy(sink)
        files, threads = _files_and_threads()
        for _ in range(10):
            assert not await _healthy(sink)
        files_later, threads_later = _files_and_threads()
        assert files_later <= files + 2
        assert threads_later <= threads + 1


def _files_and_threads() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


async def test_a_deleted_topic_is_created_again_and_filled(harness: Harness, breakable_kafka: KafkaBroker) -> None:
    async with harness.started(**IMPATIENT) as sink:
        await harness.commit(sink, *(make_row(LakeTable, id=n) for n in range(10)))
        assert await sink.on_health()
        delete_topic(breakable_kafka.address, f"{harness.prefix}.tables")
        with pytest.raises(TopicUnusable, match=r"\.tables was deleted and created again"):
            await _until_unhealthy(sink)
        assert await sink.on_health()
        await harness.refresh(sink)
        await harness.commit(sink, make_row(LakeTable, id=11))
        assert harness.in_topics(breakable_kafka) == harness.in_registry()


async def _until_unhealthy(sink: KafkaSink) -> None:
    while True:
        await sink.on_health()
        await asyncio.sleep(0.02)


async def test_a_record_that_the_broker_refuses_replaces_the_producer(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    topic = f"{harness.prefix}.tables"
    async with harness.started(compression="none", **IMPATIENT) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        configure(breakable_kafka, topic, "max.message.bytes", "20000")
        huge = harness.registry.commit(make_row(LakeTable, id=2, location="x" * 30_000), make_row(LakeTable, id=3))
        with pytest.raises(SendFailed, match=r"larger than topic .* allows: raise max.message.bytes"):
            await deliver(sink, huge)
        assert await sink.on_health()  # learns the new limit
        await deliver(sink, huge)
        assert {key for (key,) in harness.in_topics(breakable_kafka)["tables"]} == {1, 3}


@pytest.mark.slow
async def test_an_outage_longer_than_the_queue_ends_in_a_refresh(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    async with harness.started(**IMPATIENT) as sink:
        await harness.commit(sink, *(make_row(LakeTable, id=n) for n in range(20)))
        breakable_kafka.kill()
        lost = harness.registry.commit(make_row(LakeTable, id=100))
        with pytest.raises(NotAcknowledged):
            await deliver(sink, lost)
        harness.registry.commit(make_row(LakeTable, id=5, total_size=7))
        harness.registry.commit(removed=[make_row(LakeTable, id=100), make_row(LakeTable, id=6)])
        breakable_kafka.start()
        await eventually(lambda: _healthy(sink), "a healthy sink")
        await harness.refresh(sink)
        assert harness.in_topics(breakable_kafka) == harness.in_registry()


async def test_stop_ends_while_a_heartbeat_waits_for_a_hanging_broker(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    """Cancelled, a heartbeat fails with its own error: its loop has to notice the cancellation."""
    sink = harness.sink(layout="transactions", heartbeat_s=0.01, acknowledge_timeout_s=1_000)
    await sink.start()
    sink.resume_at(harness.registry.last, 1)
    await harness.commit(sink, make_row(LakeTable, id=1))
    breakable_kafka.pause()
    assert isinstance(sink, TransactionSink)
    await eventually(lambda: bool(sink._outbox._in_flight), "a heartbeat that is not acknowledged")
    stopping = asyncio.create_task(sink.stop())
    await eventually(stopping.done, "the end of `stop`", 30)
    stopping.result()


async def test_a_heartbeat_gives_way_to_a_delivery(harness: Harness, breakable_kafka: KafkaBroker) -> None:
    """Otherwise a delivery would wait for two timeouts, longer than its lane allows."""
    settings: dict[str, Any] = {"layout": "transactions", "heartbeat_s": 0.01, "acknowledge_timeout_s": 1_000}
    async with harness.started(**settings) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        breakable_kafka.pause()
        await eventually(lambda: bool(sink._outbox._in_flight), "a heartbeat that is not acknowledged")
        assert not sink._outbox.holds_commits
        commit = harness.registry.commit(make_row(LakeTable, id=2))
        delivering = asyncio.create_task(deliver(sink, commit))
        await eventually(lambda: sink._outbox.holds_commits, "a delivery that was sent")
        breakable_kafka.resume()
        await delivering


async def test_a_producer_that_sends_nothing_is_replaced_by_heartbeats(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    """With an idle registry there is no delivery that fails, no open circuit and no refresh. A follower that starts
    now waits for a heartbeat before its components may refresh.
    """
    settings = {**IMPATIENT, "layout": "transactions", "heartbeat_s": 0.02, "acknowledge_timeout_s": 0.3}
    async with harness.started(**settings) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        await eventually(lambda: _heartbeats(sink) > 0, "a heartbeat")
        wedged = sink._outbox._producer
        assert wedged is not None
        wedged.enqueue = lambda batches: None  # type: ignore[method-assign]
        await eventually(lambda: bool(list(sink.problems())), "a problem")
        (problem,) = sink.problems()
        assert "not acknowledged" in problem.reason
        count = _heartbeats(sink)
        await eventually(lambda: _heartbeats(sink) > count, "heartbeats of another producer")
        assert sink._outbox._producer is not wedged
        assert not list(sink.problems())


async def test_a_producer_with_commits_on_their_way_is_not_replaced_by_heartbeats(
    harness: Harness, breakable_kafka: KafkaBroker
) -> None:
    """Another producer would send them twice."""
    settings = {**IMPATIENT, "layout": "transactions", "heartbeat_s": 0.02, "acknowledge_timeout_s": 0.3}
    async with harness.started(**settings) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        producer = sink._outbox._producer
        breakable_kafka.pause()
        commit = harness.registry.commit(make_row(LakeTable, id=2))
        with pytest.raises(NotAcknowledged):
            await deliver(sink, commit)
        await eventually(lambda: any(problem.attempts > 2 for problem in sink.problems()), "heartbeats that failed")
        assert sink._outbox._producer is producer
        breakable_kafka.resume()
        await deliver_at_last(sink, commit)
    records = [decode_record(record.value) for record in read_topic(harness.address, f"{harness.prefix}.transactions")]
    assert [record.position for record in records if isinstance(record, TransactionRecord)] == [1, 2]


def _heartbeats(sink: KafkaSink) -> float:
    return next(metric.value for metric in sink.metrics() if metric.name == "heartbeats")


def configure(broker: KafkaBroker, topic: str, name: str, value: str) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})])


@pytest.mark.slow
async def test_a_broker_whose_disk_is_full_ends_and_nothing_is_lost(harness: Harness, own_kafka: KafkaBroker) -> None:
    """Kafka ends when it can't write its only log directory. No file may grow here, as on a full disk."""
    harness = Harness(own_kafka.address, harness.prefix)
    transactions = growing(harness, 40)
    async with harness.started(**IMPATIENT) as sink:
        await deliver(sink, *transactions[:20])
        resource.prlimit(own_kafka.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        with pytest.raises(Retry):
            await deliver(sink, *transactions[20:])
        await eventually(lambda: _unhealthy(sink), "a broker that has ended", 120)
        own_kafka.restart()
        await deliver_at_last(sink, *transactions[20:])
    found = sizes_by_key(harness)
    assert {key: sorted(set(sizes)) for key, sizes in found.items()} == {
        b'{"id":%d}' % n: list(range(40)) for n in range(3)
    }
    assert all(sizes[-1] == 39 for sizes in found.values())


@pytest.mark.slow
async def test_a_slow_connection_delays_and_memory_is_bounded(make_kafka: MakeKafka, topic_prefix: str) -> None:
    """Deliveries time out and are retried while their records crawl to the broker: none is sent twice."""
    limit = 60_000
    async with TcpProxy("127.0.0.1", 0) as proxy:
        broker = make_kafka(advertised={"SLOW": f"127.0.0.1:{proxy.port}"})
        proxy.lead_to("127.0.0.1", broker.port_of("SLOW"))
        slow, direct = Harness(f"127.0.0.1:{proxy.port}", topic_prefix), Harness(broker.address, topic_prefix)
        patient = {**IMPATIENT, "request_timeout_s": 30.0, "connect_timeout_s": 30.0}
        async with slow.started(compression="none", max_in_flight_bytes=limit, **patient) as sink:
            transactions = growing(slow, 300)
            proxy.throttle(100_000)
            most = 0
            failures = 0
            for start in range(0, 300, 100):
                delivering = asyncio.create_task(deliver_at_last(sink, *transactions[start : start + 100]))
                while not delivering.done():
                    most = max(most, sink._outbox._pending_bytes)
                    await asyncio.sleep(0.001)
                failures += delivering.result()
            proxy.throttle(None)
        assert sizes_by_key(direct) == {b'{"id":%d}' % n: list(range(300)) for n in range(3)}
    assert failures > 0
    assert limit // 2 < most <= limit


@pytest.mark.slow
async def test_stop_ends_while_the_broker_hangs(harness: Harness, breakable_kafka: KafkaBroker) -> None:
    sink = harness.sink(**IMPATIENT)
    await sink.start()
    (only,) = growing(harness, 1)
    breakable_kafka.pause()
    with pytest.raises(NotAcknowledged):
        await deliver(sink, only)
    await asyncio.wait_for(sink.stop(), 30)
