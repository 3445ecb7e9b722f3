"""Layout `transactions` on a real broker, read as a follower does."""

from __future__ import annotations

import pytest

from astha.events import Transaction
from astha.events.stream_records import GapRecord, HeartbeatRecord, StreamRecord, TransactionRecord, decode_record
from astha.sources.continuity import Continuity
from astha.sources.contract import Gap
from astha.subscribers import LakeTable, TableFile
from astha.testing import deliver, make_row
from components.kafka_sink.errors import TopicUnusable
from tests.integration.components.kafka_sink.harness import TABLES, Harness
from tests.kafka_reader import create_topic, read_topic
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually


@pytest.fixture
def harness(kafka: KafkaBroker, topic_prefix: str) -> Harness:
    return Harness(kafka.address, topic_prefix)


def sent(harness: Harness, kafka: KafkaBroker) -> list[StreamRecord]:
    return [decode_record(record.value) for record in read_topic(kafka.address, f"{harness.prefix}.transactions")]


def sent_but_heartbeats(harness: Harness, kafka: KafkaBroker) -> list[StreamRecord]:
    """A sink that stops sends a last heartbeat."""
    return [record for record in sent(harness, kafka) if not isinstance(record, HeartbeatRecord)]


async def test_commits_are_linked_by_their_positions(harness: Harness, kafka: KafkaBroker) -> None:
    async with harness.started(epoch=3, layout="transactions", heartbeat_s=1000) as sink:
        await harness.refresh(sink, epoch=3)
        await deliver(sink, *(harness.registry.commit(make_row(LakeTable, id=n)) for n in range(3)))
        await harness.commit(sink, make_row(LakeTable, id=9), make_row(TableFile, id=1))
    gap, *commits = sent_but_heartbeats(harness, kafka)
    assert isinstance(gap, GapRecord)
    assert [(type(record), record.previous, record.position) for record in commits] == [
        (TransactionRecord, 0, 1), (TransactionRecord, 1, 2), (TransactionRecord, 2, 3), (TransactionRecord, 3, 4),
    ]  # fmt: skip
    assert {(record.epoch, record.history, record.covers) for record in commits} == {
        (3, gap.history, tuple(sorted(TABLES)))
    }


async def test_a_restart_continues_the_history_and_a_refresh_begins_one(harness: Harness, kafka: KafkaBroker) -> None:
    async with harness.started(layout="transactions", heartbeat_s=1000) as sink:
        await harness.refresh(sink)
        await harness.commit(sink, make_row(LakeTable, id=1))
    async with harness.started(layout="transactions", heartbeat_s=1000) as sink:
        await harness.commit(sink, make_row(LakeTable, id=2))
        await harness.refresh(sink)
    first, one, two, second = sent_but_heartbeats(harness, kafka)
    assert first.history == one.history == two.history != second.history
    assert (two.previous, two.position, second.position) == (1, 2, 2)
    assert harness.store.identities == {"transactions:astha:kafka_sink": second.history}


async def test_heartbeats_wait_until_commits_are_visible(harness: Harness, kafka: KafkaBroker) -> None:
    registry = harness.registry
    async with harness.started(layout="transactions", heartbeat_s=0.02) as sink:
        await harness.refresh(sink)
        hidden = registry.commit(make_row(LakeTable, id=1))
        position, registry.last = registry.last, type(registry.last)(0)  # streamed, and not yet visible
        await deliver(sink, hidden)
        count = len(sent(harness, kafka))

        def beats() -> list[int]:
            return [record.position for record in sent(harness, kafka) if isinstance(record, HeartbeatRecord)]

        assert position not in beats()
        registry.last = position
        await eventually(lambda: position in beats(), "a heartbeat once the commit is visible")
        assert len(sent(harness, kafka)) > count


async def test_a_follower_receives_every_commit_once(harness: Harness, kafka: KafkaBroker) -> None:
    follower = Continuity(TABLES)
    async with harness.started(layout="transactions", heartbeat_s=0.05) as sink:
        await harness.refresh(sink)
        for number in range(20):
            await harness.commit(sink, make_row(LakeTable, id=number))
        await eventually(
            lambda: any(isinstance(record, HeartbeatRecord) for record in sent(harness, kafka)), "a heartbeat"
        )
    received = [
        batch
        for record in read_topic(kafka.address, f"{harness.prefix}.transactions")
        for batch in follower.take(record.value)
    ]
    transactions = [one for batch in received if isinstance(batch, list) for one in batch]
    assert all(isinstance(one, Transaction) for one in transactions)
    assert [one.commit.position for one in transactions] == list(range(1, 21))
    assert sum(isinstance(batch, Gap) for batch in received) == 1


async def test_a_commit_too_large_for_a_record_names_its_tables(harness: Harness, kafka: KafkaBroker) -> None:
    create_topic(kafka.address, f"{harness.prefix}.transactions", max_message_bytes="20000")
    async with harness.started(layout="transactions", compression="none") as sink:
        await harness.refresh(sink)
        await harness.commit(sink, make_row(LakeTable, id=1, location="x" * 30_000))
        await harness.commit(sink, make_row(LakeTable, id=2))
        counts = {metric.name: metric.value for metric in sink.metrics()}
    large, small = (record for record in sent(harness, kafka) if isinstance(record, TransactionRecord))
    assert (large.unlisted, list(large.events)) == (("tables",), [])
    assert len(small.events) == 1
    assert counts["unlisted"] == 1


async def test_a_topic_with_several_partitions_is_refused(harness: Harness, kafka: KafkaBroker) -> None:
    create_topic(kafka.address, f"{harness.prefix}.transactions", partitions=2)
    sink = harness.sink(layout="transactions")
    with pytest.raises(TopicUnusable, match="has 2 partitions"):
        await sink.start()
    await sink.stop()


async def test_a_sink_is_started_again_when_leadership_is_won_again(harness: Harness, kafka: KafkaBroker) -> None:
    """In the same process: the daemon stops its components when it loses the lease."""
    sink = harness.sink(layout="transactions", heartbeat_s=1000)
    for epoch in (1, 2, 3):
        await sink.start()
        try:
            assert await sink.on_health()
            sink.resume_at(harness.registry.last, epoch)
            await harness.commit(sink, make_row(LakeTable, id=epoch))
        finally:
            await sink.stop()
    records = sent_but_heartbeats(harness, kafka)
    assert [(record.epoch, record.previous, record.position) for record in records] == [(1, 0, 1), (2, 1, 2), (3, 2, 3)]
