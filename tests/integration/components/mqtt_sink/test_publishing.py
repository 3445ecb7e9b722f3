"""What the sink publishes, as a client without Astha code sees it."""

from __future__ import annotations

from typing import Any

import pytest

from astha.events.stream_records import GapRecord, HeartbeatRecord, TransactionRecord, decode_record, transaction_of
from astha.subscribers import Partition, Topic
from astha.testing import FakeRegistry, deliver, make_row
from tests.integration.components.mqtt_sink.listener import TABLES, Listener, Sinks
from tests.servers.mosquitto import Mosquitto


def topic(name: str, partitions: int = 1) -> Topic:
    return make_row(Topic, name=name, partition_count=partitions)


def partition(name: str, number: int, watermark: int = 0) -> Partition:
    return make_row(Partition, topic=name, partition_id=number, high_watermark=watermark)


async def test_a_change_has_its_topic_and_its_properties(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/topics/#", f"{prefix}/partitions/+/+/+") as listener:
        sink = await sinks.start(mosquitto.url, prefix)
        await deliver(sink, registry.commit(topic("orders"), partition("orders", 3)))
        await deliver(sink, registry.commit(topic("orders", 2)))
        await deliver(sink, registry.commit(removed=[partition("orders", 3)]))
        messages = await listener.until("#", 4)
    assert [message.topic.removeprefix(prefix) for message in messages] == [
        "/topics/insert/orders", "/partitions/insert/orders/3", "/topics/update/orders", "/partitions/delete/orders/3",
    ]  # fmt: skip
    second = messages[1]
    assert second.content_type == "application/json"
    assert second.properties == {
        "table": "partitions", "operation": "insert", "position": "1", "transaction": "1", "index": "1", "epoch": "7",
    }  # fmt: skip
    assert [message.json()["op"] for message in messages] == ["c", "c", "u", "d"]
    assert second.json()["after"]["partition_id"] == 3
    assert not any(message.retain for message in messages)


@pytest.mark.parametrize("name", ["a/b", "+", "#", "$SYS", "ü\N{SNOWMAN}", "a b%2F", "\x7f\x01", "\0"])
async def test_no_key_adds_levels_or_wildcards(mosquitto: Mosquitto, prefix: str, sinks: Sinks, name: str) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/topics/insert/+") as listener:
        sink = await sinks.start(mosquitto.url, prefix, transactions=False)
        await deliver(sink, registry.commit(topic(name)))
        (message,) = await listener.until("#", 1)
    assert message.json()["after"]["name"] == name


@pytest.mark.parametrize(
    ("settings", "content_type", "property_"),
    [
        ({"format": "json"}, "application/json", None),
        ({"format": "debezium", "schemas": True}, "application/json", None),
        ({"format": "cloudevents"}, "application/cloudevents+json; charset=UTF-8", None),
        ({"format": "cloudevents", "mode": "binary"}, "application/json", "specversion"),
    ],
)
async def test_each_format_arrives_with_its_content_type(
    mosquitto: Mosquitto, prefix: str, sinks: Sinks, settings: dict[str, Any], content_type: str, property_: str
) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/topics/#") as listener:
        sink = await sinks.start(mosquitto.url, prefix, **settings)
        await deliver(sink, registry.commit(topic("orders")))
        (message,) = await listener.until("#", 1)
    assert message.content_type == content_type
    assert message.properties["operation"] == "insert"
    assert property_ is None or message.properties[property_] == "1.0"
    assert "orders" in message.payload.decode()


async def test_followers_get_one_record_per_commit(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    registry.step = 10
    async with Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(mosquitto.url, prefix, resume_at=4, changes=False, heartbeat_s=60)
        commits = [registry.commit(topic(f"t{number}"), partition(f"t{number}", 0)) for number in range(3)]
        await deliver(sink, *commits)
        messages = await listener.until(f"{prefix}/transactions", 3)
        assert listener.on(f"{prefix}/topics/#") == []
    records = [decode_record(message.payload) for message in messages]
    assert [(record.previous, record.position) for record in records] == [(4, 10), (10, 20), (20, 30)]
    for record, commit, message in zip(records, commits, messages, strict=True):
        assert isinstance(record, TransactionRecord)
        assert transaction_of(record, TABLES, 0).events == commit.events
        assert (record.group, record.epoch) == ("leaders", 7)
        assert message.properties == {
            "kind": "transaction", "position": str(record.position), "previous": str(record.previous), "epoch": "7",
        }  # fmt: skip


async def test_thousands_of_messages_keep_their_order(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(mosquitto.url, prefix, heartbeat_s=60)
        await deliver(sink, *[registry.commit(topic(f"t{number}")) for number in range(1_000)])
        changes = await listener.until(f"{prefix}/topics/#", 1_000)
        records = await listener.until(f"{prefix}/transactions", 1_000)
    assert [int(message.properties["position"]) for message in changes] == list(range(1, 1_001))
    assert [int(message.properties["position"]) for message in records] == list(range(1, 1_001))


async def test_a_commit_that_is_too_large_is_sent_without_rows(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(mosquitto.url, prefix, max_payload_bytes=2_000, heartbeat_s=60)
        await deliver(sink, registry.commit(topic("x" * 3_000), topic("small")))
        (message,) = await listener.until(f"{prefix}/transactions", 1)
        large, small = await listener.until(f"{prefix}/topics/#", 2)
    record = decode_record(message.payload)
    assert isinstance(record, TransactionRecord)
    assert record.unlisted == ("topics",)
    assert (large.payload, large.topic) == (b"", f"{prefix}/topics/insert/{'x' * 3_000}")
    assert large.properties["omitted"].startswith("payload of ")
    assert small.json()["after"]["name"] == "small"


async def test_a_heartbeat_follows_what_was_sent(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/transactions") as listener:
        sink = await sinks.start(mosquitto.url, prefix, heartbeat_s=0.05)
        await listener.until("#", 2)
        await deliver(sink, registry.commit(topic("orders")))
        seen = len(listener.received)
        await listener.until("#", seen + 2)
    records = [decode_record(message.payload) for message in listener.received]
    kinds = [type(record) for record in records]
    sent = kinds.index(TransactionRecord)
    assert {record.previous for record in records[:sent]} == {0}
    assert all(isinstance(record, HeartbeatRecord) and record.previous in (0, 1) for record in records[sent + 1 :])
    assert records[-1].previous == 1


async def test_a_refresh_reads_every_row_and_begins_a_history(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    registry.commit(*(topic(f"t{number}") for number in range(5)), partition("t0", 0))
    async with Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(mosquitto.url, prefix, heartbeat_s=60)
        sink.resume_at(registry.last, 8)
        await sink.on_refresh(registry.snapshot())
        await deliver(sink, registry.commit(topic("later")))
        await listener.until(f"{prefix}/transactions", 2)
        messages = await listener.until(f"{prefix}/+/+/#", 6)
    begin, end = listener.on(f"{prefix}/refresh")
    assert (begin.json()["state"], end.json()["state"]) == ("BEGIN", "END")
    assert begin.json()["refresh"] == end.json()["refresh"]
    assert end.json()["rows"] == {"topics": 5, "partitions": 1}
    order = [message.topic for message in listener.received]
    reads = [place for place, name in enumerate(order) if "/read/" in name]
    assert order.index(begin.topic) < min(reads) <= max(reads) < len(order) - order[::-1].index(begin.topic) - 1
    assert {message.properties["operation"] for message in messages[:6]} == {"read"}
    assert [message.json()["source"]["snapshot"] for message in messages[:6]] == ["true"] * 5 + ["last"]
    gap, record = (decode_record(message.payload) for message in listener.on(f"{prefix}/transactions"))
    assert isinstance(gap, GapRecord)
    assert (gap.position, record.previous, record.history, record.epoch) == (1, 1, gap.history, 8)


async def test_a_new_process_continues_the_history(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with Listener(mosquitto, f"{prefix}/transactions") as listener:
        first = await sinks.start(mosquitto.url, prefix, heartbeat_s=60)
        await deliver(first, registry.commit(topic("a")))
        second = await sinks.start(mosquitto.url, prefix, resume_at=1, heartbeat_s=60)
        await deliver(second, registry.commit(topic("b")))
        one, two = (decode_record(message.payload) for message in await listener.until("#", 2))
    assert (one.history, one.position) == (two.history, two.previous)


async def test_states_are_retained_and_marked_at_the_end(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    sink = await sinks.start(mosquitto.url, prefix)
    daemon = f"{prefix}/daemons/leaders"
    async with Listener(mosquitto, f"{prefix}/components/+", daemon) as listener:
        await listener.until(f"{prefix}/components/other", 1)
        await listener.until(daemon, 1)
        shown = listener.on(f"{prefix}/components/other")[-1].json()
        assert (shown["state"], shown["reason"], shown["position"]) == ("broken", "it failed", 5)
        assert (shown["group"], bool(shown["host"])) == ("leaders", True)
        assert listener.on(daemon)[-1].json()["state"] == "online"
        await sink.stop()
        await listener.until(f"{prefix}/components/other", 2)
        await listener.until(daemon, 2)
    async with Listener(mosquitto, f"{prefix}/components/+", daemon) as late:
        await late.until("#", 3)
    assert all(message.retain for message in late.received)
    assert {message.json()["state"] for message in late.on(f"{prefix}/components/+")} == {"stopped"}
    (last,) = late.on(daemon)
    assert (last.json()["state"], last.json()["epoch"]) == ("offline", 7)  # ours: the last will has no epoch


async def test_the_metrics_count_acknowledged_messages(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    sink = await sinks.start(mosquitto.url, prefix, heartbeat_s=60)
    await deliver(sink, registry.commit(topic("a"), topic("b")))
    found = {(metric.name, metric.labels.get("kind")): metric.value for metric in sink.metrics()}
    assert found["messages_total", "change"] == 2
    assert found["messages_total", "transaction"] == 1
    assert (found["broker_connected", None], found["in_flight", None]) == (1, 0)


async def test_a_sink_is_started_again_when_leadership_is_won_again(
    mosquitto: Mosquitto, prefix: str, sinks: Sinks
) -> None:
    """In the same process: the daemon stops its components when it loses the lease."""
    registry = FakeRegistry()
    sink = await sinks.start(mosquitto.url, prefix, epoch=1, heartbeat_s=1000)
    async with Listener(mosquitto, f"{prefix}/transactions", f"{prefix}/topics/#") as listener:
        for epoch in (1, 2, 3):
            if epoch > 1:
                await sink.start()
                sink.resume_at(registry.last, epoch)
            await deliver(sink, registry.commit(topic(f"t{epoch}")))
            assert await sink.on_health()
            await sink.stop()
        await listener.until(f"{prefix}/topics/#", 3)
        records = [decode_record(message.payload) for message in listener.on(f"{prefix}/transactions")]
    sent = [record for record in records if isinstance(record, TransactionRecord)]
    assert [(record.epoch, record.previous, record.position) for record in sent] == [(1, 0, 1), (2, 1, 2), (3, 2, 3)]
