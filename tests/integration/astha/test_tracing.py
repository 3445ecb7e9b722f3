"""Spans of real daemons, received over OTLP by a collector."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import structlog

from astha.clock import SystemLoopClock
from astha.events import Event
from astha.subscribers import ComponentContext, Retry
from astha.telemetry.metrics import DaemonCollector
from astha.testing import RecordingSubscriber
from astha.tracing.otel.log_fields import add_trace_ids
from registry.contract import MetadataStore
from registry.models import Row
from tests.fixtures.assembled_daemons import RunAssembled, tracing_to
from tests.fixtures.collector import Collector, ReceivedSpan
from tests.fixtures.followers import new_name
from tests.fixtures.stores import OpenStore
from tests.integration.components.mqtt_sink.listener import Listener
from tests.kafka_reader import headers_of, read_topic
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually

TABLE = "consumer_groups"
_BROKERS = {"kafka": "Kafka", "mqtt": "MQTT"}


class Traced(RecordingSubscriber):
    """Opens a span of its own, logs within it, and fails as often as it was told."""

    durable = False

    def __init__(self, failures: int, context: ComponentContext) -> None:
        super().__init__(TABLE)
        self.failures = failures
        self._context = context
        self.logged: list[dict[str, Any]] = []

    async def on_event(self, event: Event[Row]) -> None:
        with self._context.span("effect", target="memory"):
            self.logged.append(dict(add_trace_ids(None, "info", {"event": "received"})))
            if self.failures:
                self.failures -= 1
                raise Retry("not now")
            await super().on_event(event)


def traced(settings: dict[str, Any], context: ComponentContext) -> Traced:
    return Traced(settings.get("failures", 0), context)


def entry(**settings: Any) -> dict[str, Any]:
    return {
        "use": "tests.integration.astha.test_tracing:traced",
        "tables": [TABLE],
        "lane": {"backoff_initial_s": 0.01},
        "settings": settings,
    }


@pytest.fixture
async def store(opened: OpenStore, sqlite_url: str) -> MetadataStore:
    return await opened(sqlite_url)


async def test_a_committed_row_is_a_trace_from_commit_to_effect(
    registry_url: str, opened: OpenStore, collector: Collector, run_assembled: RunAssembled
) -> None:
    store = await opened(registry_url)
    tracing = tracing_to(collector, headers={"authorization": "Bearer abc"}, service_name="registry-events")
    daemon = await run_assembled(registry_url, {"audit": entry(failures=2)}, tracing=tracing)
    await daemon.live()
    await store.ensure_consumer_group("readers")
    delivery: ReceivedSpan = await collector.until("deliver audit")
    (commit,) = collector.named("commit")
    assert commit.parent_id == ""
    assert (delivery.trace_id, delivery.parent_id) == (commit.trace_id, commit.span_id)
    assert commit.start_ns <= commit.end_ns <= delivery.end_ns
    assert commit.attributes["astha.tables"] == [TABLE]
    assert delivery.attributes["astha.inserts"] == 1
    assert delivery.attributes["astha.failed_attempts"] == 2
    assert [name for name, _ in delivery.events] == ["attempt failed"] * 2
    assert "not now" in delivery.events[0][1]["astha.error"]
    assert delivery.error is None
    effects = collector.named("effect")
    assert [span.error is None for span in effects] == [False, False, True]
    assert {(span.trace_id, span.parent_id) for span in effects} == {(commit.trace_id, delivery.span_id)}
    refresh = await collector.until("refresh audit")
    assert refresh.trace_id != commit.trace_id
    assert delivery.resource["service.name"] == "registry-events"
    assert collector.headers[0]["authorization"] == "Bearer abc"
    subscriber = daemon.subscribers["audit"]
    assert isinstance(subscriber, Traced)
    assert [line["trace_id"] for line in subscriber.logged] == [commit.trace_id] * 3
    assert [line["span_id"] for line in subscriber.logged] == [span.span_id for span in effects]


@pytest.mark.parametrize(
    ("status", "reasons"),
    [(503, {"queue_full", "not_accepted"}), (400, {"not_accepted"}), (None, {"queue_full"})],
    ids=["unavailable", "refusing", "hanging"],
)
async def test_a_collector_that_takes_nothing_holds_nothing_up(
    store: MetadataStore,
    sqlite_url: str,
    collector: Collector,
    run_assembled: RunAssembled,
    status: int | None,
    reasons: set[str],
) -> None:
    """Spans are dropped and counted: those of requests that it refuses, and those that do not fit into the queue."""
    collector.status = status
    tracing = tracing_to(collector, max_queued_spans=5, max_traces_per_s=10_000)
    daemon = await run_assembled(sqlite_url, {"audit": entry()}, tracing=tracing)
    await daemon.live()
    await store.ensure_consumer_group("first")
    await eventually(lambda: collector.requests > 0, "a request to the collector")
    for number in range(20):
        await store.ensure_consumer_group(f"group{number}")
        await daemon.agree(store)
    assert not collector.spans

    def dropped() -> dict[str, float]:
        return {
            sample.labels["reason"]: sample.value
            for family in DaemonCollector(daemon.daemon, SystemLoopClock()).collect()
            for sample in family.samples
            if sample.name == "astha_tracing_spans_dropped_total"
        }

    assert set(dropped()) == {"queue_full", "not_accepted"}
    await eventually(lambda: sum(dropped()[reason] for reason in reasons) > 0, "spans are dropped and counted")
    await asyncio.wait_for(daemon.stop(), 60)


async def commit_until_delivered(store: MetadataStore, collector: Collector) -> None:
    """On a busy machine a follower may refresh once more, which contains the first commits."""
    for number in range(60):
        await store.ensure_consumer_group(f"readers{number}")
        with suppress(AssertionError):
            await eventually(lambda: bool(collector.named("deliver audit")), "a delivery", 1.0)
            return
    raise AssertionError("nothing was delivered")


@pytest.mark.parametrize("transport", ["kafka", "mqtt"])
async def test_a_follower_continues_the_trace(
    sqlite_url: str,
    store: MetadataStore,
    collector: Collector,
    run_assembled: RunAssembled,
    transport: str,
    request: pytest.FixtureRequest,
) -> None:
    name = new_name()
    if transport == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        sink = {"bootstrap_servers": kafka.address, "layout": "transactions", "prefix": name, "heartbeat_s": 0.1}
        url = f"kafka://{kafka.address}/{name}.transactions"
    else:
        mosquitto: Mosquitto = request.getfixturevalue("mosquitto")
        sink = {"url": mosquitto.url, "prefix": name, "heartbeat_s": 0.1}
        url = f"{mosquitto.url}/{name}"
    leading = {f"{transport}_sink": {"tables": [TABLE], "settings": sink}}
    leader = await run_assembled(sqlite_url, leading, tracing=tracing_to(collector))
    await leader.live()
    tracing = tracing_to(collector, sample_ratio=0)  # the leader decides
    follower = await run_assembled(sqlite_url, {"audit": entry()}, group="remote", source={"url": url}, tracing=tracing)
    await follower.live()
    await commit_until_delivered(store, collector)
    trace_id = collector.named("deliver audit")[0].trace_id
    names = ["commit", f"deliver {transport}_sink", f"send to {_BROKERS[transport]}", "receive", "deliver audit"]
    commit, sinking, send, receive, delivery = [
        await collector.until(name, where=lambda span: bool(span.trace_id == trace_id)) for name in names
    ]
    assert [sinking.parent_id, send.parent_id, receive.parent_id, delivery.parent_id] == [
        commit.span_id, sinking.span_id, send.span_id, receive.span_id,
    ]  # fmt: skip
    assert receive.attributes["astha.group"] == "remote"


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
async def test_records_and_messages_carry_the_context_only_if_tracing_is_on(
    sqlite_url: str,
    store: MetadataStore,
    collector: Collector,
    kafka: KafkaBroker,
    mosquitto: Mosquitto,
    run_assembled: RunAssembled,
    enabled: bool,
) -> None:
    name = new_name()
    components = {
        "by_table": {
            "use": "components.kafka_sink:create",
            "tables": [TABLE],
            "settings": {"bootstrap_servers": kafka.address, "prefix": name, "transaction_topic": True},
        },
        "mqtt_sink": {"tables": [TABLE], "settings": {"url": mosquitto.url, "prefix": name}},
    }
    async with Listener(mosquitto, f"{name}/#") as listener:
        daemon = await run_assembled(sqlite_url, components, tracing=tracing_to(collector) if enabled else {})
        await daemon.live()
        await store.ensure_consumer_group("readers")
        changes = await listener.until(f"{name}/{TABLE}/insert/#", 1)
        records = await listener.until(f"{name}/transactions", 2)
    await eventually(lambda: len(read_topic(kafka.address, f"{name}.{TABLE}")) == 1, "the record of a row")
    (row,) = read_topic(kafka.address, f"{name}.{TABLE}")
    transaction = next(record for record in records if record.properties["kind"] == "transaction")
    markers = [headers_of(record) for record in read_topic(kafka.address, f"{name}.transaction")]
    *refresh, begin, end = markers
    sent = [headers_of(row), begin, end, changes[-1].properties, transaction.properties]
    if not enabled:
        assert not any("traceparent" in headers for headers in [*sent, *refresh])
        assert not collector.requests
        return
    await collector.until("send to Kafka")
    (commit,) = collector.named("commit")
    for headers in sent:
        version, trace_id, _, flags = headers["traceparent"].split("-")
        assert (version, trace_id, flags) == ("00", commit.trace_id, "01")
    spans = {span.trace_id for span in collector.named("refresh by_table")}
    assert {headers["traceparent"].split("-")[1] for headers in refresh} <= spans


async def test_logs_of_the_daemon_within_a_delivery_carry_the_trace(
    sqlite_url: str, store: MetadataStore, collector: Collector, run_assembled: RunAssembled
) -> None:
    with structlog.testing.capture_logs(processors=[add_trace_ids]) as logged:
        daemon = await run_assembled(sqlite_url, {"audit": entry(failures=1)}, tracing=tracing_to(collector))
        await daemon.live()
        await store.ensure_consumer_group("readers")
        await daemon.agree(store)
    delivery = await collector.until("deliver audit")
    (line,) = [line for line in logged if line["event"] == "delivery failed, will be retried"]
    assert (line["trace_id"], line["span_id"]) == (delivery.trace_id, delivery.span_id)
