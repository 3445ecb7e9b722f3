"""Layout `tables` on a real broker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from astha.subscribers import LakeTable, TableFile, Topic
from astha.testing import deliver, make_row
from components.kafka_sink.errors import TopicUnusable
from tests.integration.components.kafka_sink.harness import Harness
from tests.kafka_reader import create_topic, headers_of, read_topic
from tests.servers.kafka import KafkaBroker


@pytest.fixture
def harness(kafka: KafkaBroker, topic_prefix: str) -> Harness:
    return Harness(kafka.address, topic_prefix)


def values(records: list[Any]) -> list[Any]:
    return [None if record.value is None else msgspec.json.decode(record.value) for record in records]


async def test_changes_arrive_keyed_and_in_order(harness: Harness, kafka: KafkaBroker) -> None:
    async with harness.started(epoch=7) as sink:
        for size in range(20):
            await harness.commit(sink, *(make_row(LakeTable, id=n, total_size=size) for n in range(5)))
    records = read_topic(kafka.address, f"{harness.prefix}.tables")
    by_key: dict[bytes, list[int]] = {}
    for record, value in zip(records, values(records), strict=True):
        by_key.setdefault(record.key, []).append(value["after"]["total_size"])
    assert set(by_key) == {b'{"id":%d}' % n for n in range(5)}
    assert all(sizes == list(range(20)) for sizes in by_key.values())
    first = next(record for record in records if record.key == b'{"id":3}')
    assert headers_of(first) == {
        "table": "tables", "operation": "INSERT", "index": "3", "position": "1", "epoch": "7", "transaction": "1",
    }  # fmt: skip


async def test_a_delete_is_followed_by_a_tombstone(harness: Harness, kafka: KafkaBroker) -> None:
    row = make_row(Topic, name="orders")
    async with harness.started() as sink:
        await harness.commit(sink, row)
        await harness.commit(sink, removed=(row,))
    records = read_topic(kafka.address, f"{harness.prefix}.topics")
    assert [value and value["op"] for value in values(records)] == ["c", "d", None]
    assert {record.key for record in records} == {b'{"name":"orders"}'}
    assert headers_of(records[2])["operation"] == "DELETE"


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_compression(harness: Harness, kafka: KafkaBroker, compression: str) -> None:
    rows = [make_row(TableFile, id=n, file_path=f"a/long/path/{n}") for n in range(500)]
    async with harness.started(compression=compression, format="json") as sink:
        await harness.commit(sink, *rows)
    records = read_topic(kafka.address, f"{harness.prefix}.table_files")
    assert sorted(value["data"]["id"] for value in values(records)) == list(range(500))


async def test_transactions_are_announced_with_their_counts(harness: Harness, kafka: KafkaBroker) -> None:
    async with harness.started(transaction_topic=True) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1), make_row(TableFile, id=1), make_row(TableFile, id=2))
    begin, end = values(read_topic(kafka.address, f"{harness.prefix}.transaction"))
    prefix = harness.prefix
    assert (begin["status"], begin["id"], begin["event_count"]) == ("BEGIN", "1:1", None)
    assert (end["status"], end["id"], end["event_count"]) == ("END", "1:1", 3)
    assert end["data_collections"] == [
        {"data_collection": f"{prefix}.table_files", "event_count": 2},
        {"data_collection": f"{prefix}.tables", "event_count": 1},
    ]
    change = values(read_topic(kafka.address, f"{prefix}.tables"))[0]
    assert change["transaction"]["id"] == "1:1"


async def test_an_acknowledged_delivery_that_is_repeated_is_sent_again(harness: Harness, kafka: KafkaBroker) -> None:
    """As after a crash: at least once. Readers recognize it by its position and index."""
    transaction = harness.registry.commit(make_row(LakeTable, id=1))
    async with harness.started() as sink:
        await deliver(sink, transaction)
        await deliver(sink, transaction)
    first, second = read_topic(kafka.address, f"{harness.prefix}.tables")
    assert headers_of(first) == headers_of(second)


async def test_a_missing_topic_is_an_error_if_topics_are_not_created(harness: Harness) -> None:
    sink = harness.sink(create_topics=False)
    with pytest.raises(TopicUnusable, match=r"there is no topic .*\.table_files.*create_topics"):
        await sink.start()
    await sink.stop()


async def test_topics_are_compacted(harness: Harness, kafka: KafkaBroker) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    async with harness.started(partitions=2, transaction_topic=True, retention_s=60):
        with KafkaAdminClient(bootstrap_servers=kafka.address) as admin:
            names = [f"{harness.prefix}.tables", f"{harness.prefix}.transaction"]
            found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
            tables, markers = admin.describe_topics(names)
    configs = found.get("topic", found)
    assert configs[names[0]]["cleanup.policy"]["value"] == "compact"
    assert configs[names[1]]["retention.ms"]["value"] == "60000"
    assert [len(tables["partitions"]), len(markers["partitions"])] == [2, 1]


async def test_a_row_too_large_for_its_topic_is_reported_and_left_out(harness: Harness, kafka: KafkaBroker) -> None:
    create_topic(kafka.address, f"{harness.prefix}.tables", max_message_bytes="20000")
    huge = make_row(LakeTable, id=1, location="x" * 30_000)
    async with harness.started(compression="none") as sink:
        await harness.commit(sink, huge, make_row(LakeTable, id=2))
        await harness.commit(sink, make_row(LakeTable, id=3))
        (problem,) = sink.problems()
        assert problem.subject == f"topic {harness.prefix}.tables"
        assert '{"id":1}' in problem.reason
        assert "max.message.bytes" in problem.reason
        assert await sink.on_health()
    assert {key for (key,) in harness.in_topics(kafka)["tables"]} == {2, 3}


async def test_check_names_missing_topics_and_creates_none(harness: Harness, kafka: KafkaBroker) -> None:
    for create, passes in ((True, True), (False, False)):
        sink = harness.sink(create_topics=create)
        (result,) = await sink.check()
        await sink.stop()
        assert f"has no topic {harness.prefix}.table_files" in result.detail
        assert (result.remedy is None) is passes
    async with harness.started() as sink:
        (result,) = await sink.check()
        assert result.detail == f"the broker at {kafka.address} has the 3 topics of this sink"


async def test_check_says_that_no_broker_listens(topic_prefix: str) -> None:
    sink = Harness("127.0.0.1:9", topic_prefix).sink(connect_timeout_s=0.5)
    (result,) = await sink.check()
    await sink.stop()
    assert "nothing listens at 127.0.0.1:9" in result.detail
    assert result.remedy is not None
