"""A follower of a Kafka topic: offsets, outages, truncated and recreated topics, passwords."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from kafka import KafkaConsumer
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import KafkaError
from kafka.future import Future

from astha.errors import ConfigError
from astha.settings.source import KafkaSourceSettings, parse_stream_url
from astha.sources.kafka.topic import KafkaTopic
from registry.contract import MetadataStore
from registry.models import ConsumerGroup
from registry.position import Position
from tests import tls
from tests.fixtures.followers import (
    GROUP,
    KafkaPublisher,
    ScriptedSender,
    Topic,
    admin,
    kafka_source,
    new_name,
)
from tests.fixtures.kafka import KAFKA_PASSWORD, KAFKA_USER
from tests.fixtures.sources import SourceReader
from tests.fixtures.stores import OpenStore
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually

TABLES = frozenset({ConsumerGroup.table})


@pytest.fixture
async def store(opened: OpenStore, sqlite_url: str) -> MetadataStore:
    return await opened(sqlite_url)


@asynccontextmanager
async def sending(broker: KafkaBroker, topic: Topic) -> AsyncIterator[ScriptedSender]:
    publisher = await asyncio.to_thread(KafkaPublisher, broker.address, topic.name)
    try:
        yield ScriptedSender(publisher)
    finally:
        await asyncio.to_thread(publisher.close)


@pytest.fixture
def topic(kafka: KafkaBroker) -> Topic:
    made = Topic(kafka.address, new_name())
    made.create()
    return made


@pytest.fixture
async def sender(kafka: KafkaBroker, topic: Topic) -> AsyncIterator[ScriptedSender]:
    async with sending(kafka, topic) as made:
        yield made


def reading(topic: Topic, store: MetadataStore) -> SourceReader:
    return SourceReader(kafka_source(topic.connection(), store), TABLES)


def groups(reader: SourceReader) -> list[str]:
    return [event.data.group_id for event in reader.events if isinstance(event.data, ConsumerGroup)]


async def received(reader: SourceReader, names: list[str]) -> None:
    await reader.until(lambda: set(names) <= set(groups(reader)), f"{names}")


async def test_a_new_group_begins_at_the_end_with_a_gap(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    await sender.commit(3)
    async with reading(topic, store) as reader:
        await eventually(lambda: reader.source.status().connected, "a connection")
        names = await sender.commit(2)
        async with sender.beating():
            await received(reader, names)
    assert groups(reader) == names
    assert len(reader.gaps) == 1
    assert reader.starts == [40]
    found = await store.get_source_identity(f"follower:{GROUP}")
    assert found is not None
    assert found.identity == "first"


async def test_metadata_that_are_never_refreshed_do_not_block_the_reader(
    topic: Topic, sender: ScriptedSender, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python ends its refresh of metadata if it fails at the wrong moment, and waits for the next one without a
    limit. The thread must not wait with it: another consumer works.
    """
    opened: list[KafkaConsumer] = []
    open_consumer = KafkaTopic.consumer

    def consumer(self: KafkaTopic, client_id: str, group: str | None) -> KafkaConsumer:
        found = open_consumer(self, client_id, group)
        if not opened:
            found._cluster.partitions_for_topic = lambda topic: None
            found._cluster.request_update = Future  # one that is never done
        opened.append(found)
        return found

    monkeypatch.setattr(KafkaTopic, "consumer", consumer)
    async with reading(topic, store) as reader:
        await eventually(lambda: len(opened) > 1, "another consumer")
        await eventually(lambda: reader.source.status().connected, "a connection")
        names = await sender.commit(2)
        async with sender.beating():
            await received(reader, names)


async def test_a_restart_continues_at_the_committed_offset(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    async with sender.beating():
        async with reading(topic, store) as first:
            await first.until(lambda: bool(first.starts), "the start")
            names = await sender.commit(5)
            await received(first, names)
            first.source.acknowledge(first.transactions[2].position)
        missed = await sender.commit(3)
        async with reading(topic, store) as second:
            await received(second, missed)
    assert groups(second) == [*names[3:], *missed]
    assert second.gaps == []
    assert second.starts == [first.transactions[2].position]


async def test_offsets_of_another_history_are_not_used(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    """Components' positions belong to the history in the registry."""
    async with sender.beating():
        async with reading(topic, store) as first:
            await first.until(lambda: bool(first.starts), "the start")
            first.source.acknowledge(first.starts[0])
        await store.record_source_identity(f"follower:{GROUP}", "another")
        async with reading(topic, store) as second:
            await second.until(lambda: bool(second.starts), "the start")
    assert len(second.gaps) == 1


async def test_what_retention_deleted_is_missing(topic: Topic, sender: ScriptedSender, store: MetadataStore) -> None:
    async with sender.beating():
        async with reading(topic, store) as first:
            await first.until(lambda: bool(first.starts), "the start")
            await received(first, await sender.commit(2))
            first.source.acknowledge(first.reached)
        away = first.reached
        await sender.commit(5)
        await asyncio.to_thread(topic.truncate, await asyncio.to_thread(topic.end) - 1)
        names = await sender.commit(1)
        async with reading(topic, store) as second:
            await second.until(lambda: second.reached >= sender.at, "what is left")
    assert second.gaps == []
    assert min(second.starts) > away, "components that had received up to there refresh"
    assert groups(second) in ([], names)


async def test_a_topic_that_is_deleted_and_created_again(
    topic: Topic, sender: ScriptedSender, store: MetadataStore, kafka: KafkaBroker
) -> None:
    """The new topic ends before the offset that the reader had reached, so it is read from its beginning."""
    async with reading(topic, store) as reader:
        await _recreate_while_read(topic, sender, reader)
        async with sending(kafka, topic) as later:
            later.at = sender.at
            await received(reader, await later.commit(2))
            assert reader.source.status().connected
    assert len(reader.gaps) == 1, "only that of the first start"


async def test_a_new_topic_that_has_outgrown_the_reader_delivers_or_refreshes(
    topic: Topic, sender: ScriptedSender, store: MetadataStore, kafka: KafkaBroker
) -> None:
    """The offset that the reader had reached may exist again, in the middle of other records."""
    async with reading(topic, store) as reader:
        await _recreate_while_read(topic, sender, reader)
        async with sending(kafka, topic) as later:
            later.at = sender.at
            names = await later.commit(2)
            for _ in range(100):
                await later.beat()
            async with later.beating():
                await reader.reach(later.at)
    assert groups(reader)[-2:] == names or max(reader.starts) > sender.at, "components whose position is lower refresh"


async def _recreate_while_read(topic: Topic, sender: ScriptedSender, reader: SourceReader) -> None:
    async with sender.beating():
        await reader.until(lambda: bool(reader.starts), "the start")
        await received(reader, await sender.commit(3))
    await asyncio.to_thread(topic.delete)
    await eventually(lambda: asyncio.to_thread(_created, topic), "the topic again", 60)
    # Until then the broker may take a record into the old topic, and so lose it.
    await eventually(lambda: asyncio.to_thread(_empty, topic), "the new topic at its broker", 60)


def _created(topic: Topic) -> bool:
    try:
        topic.create()
    except KafkaError:
        return False
    return True


def _empty(topic: Topic) -> bool:
    try:
        return topic.end() == 0
    except KafkaError:
        return False


async def test_a_topic_with_more_partitions_is_refused(kafka: KafkaBroker, store: MetadataStore) -> None:
    topic = Topic(kafka.address, new_name())
    await asyncio.to_thread(topic.create, 2)
    with pytest.raises(ConfigError, match="has 2 partitions"):
        await first_batch(topic.connection(), store)


async def test_a_topic_that_does_not_exist_yet_is_waited_for(kafka: KafkaBroker, store: MetadataStore) -> None:
    topic = Topic(kafka.address, new_name())
    async with reading(topic, store) as reader:
        await eventually(lambda: "there is no topic" in str(reader.source.status().detail), "the detail")
        assert "start the leader" in str(reader.source.status().detail)
        assert not reader.source.status().connected
        await asyncio.to_thread(topic.create)
        async with sending(kafka, topic) as sender, sender.beating():
            await reader.until(lambda: bool(reader.starts), "the start")


async def test_a_table_that_is_not_sent_is_an_error_only_at_the_end_of_the_topic(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    async with sender.beating(), reading(topic, store) as first:
        await first.until(lambda: bool(first.starts), "the start")
        first.source.acknowledge(first.starts[0])
    await sender.beat()
    both = TABLES | {"topics"}
    with pytest.raises(ConfigError, match="group astha do not send changes of topics"):
        await first_batch(topic.connection(), store, both)
    sender.change(covers=("consumer_groups", "topics"))
    await sender.refresh("second")
    await sender.beat()
    reader = SourceReader(kafka_source(topic.connection(), store), both)
    async with reader:
        await reader.until(lambda: bool(reader.starts), "the start")
    assert reader.gaps


async def test_records_of_a_deposed_leader_and_of_a_restored_registry(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    lease = await store.take_daemon_lease("astha", "leader", 60_000)
    assert lease is not None
    sender.change(epoch=lease.epoch)
    async with reading(topic, store) as reader:
        async with sender.beating():
            await reader.until(lambda: bool(reader.starts), "the start")
        sender.change(epoch=lease.epoch - 1)
        await sender.beat()
        sender.change(epoch=lease.epoch)
        names = await sender.commit()
        await received(reader, names)
        assert len(reader.gaps) == 1
        sender.change(epoch=lease.epoch + 5)  # then the registry is restored to its state of now
        await received(reader, await sender.commit())
        sender.change(epoch=lease.epoch, history="restored")
        async with sender.beating():
            await reader.until(lambda: len(reader.gaps) == 2, "the restored registry")
    assert "restored" in reader.gaps[1]


async def test_a_replay_reads_again_what_is_not_acknowledged(
    topic: Topic, sender: ScriptedSender, store: MetadataStore
) -> None:
    source = kafka_source(topic.connection(), store)
    async with sender.beating(), SourceReader(source, TABLES) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")
        names = await sender.commit(6)
        await received(reader, names)
        again: list[str] = []
        async with aclosing(source.replay(TABLES, reader.transactions[1].position)) as replay:
            async for batch in replay:
                if isinstance(batch, list):
                    again += [
                        event.data.group_id
                        for item in batch
                        for event in item.events
                        if isinstance(event.data, ConsumerGroup)
                    ]
                if names[-1] in again:
                    break
    assert again == names[2:]


async def test_no_leader_shows_in_the_status(topic: Topic, sender: ScriptedSender, store: MetadataStore) -> None:
    async with reading(topic, store) as reader:
        status = reader.source.status
        async with sender.beating():
            await reader.until(lambda: bool(reader.starts), "the start")
            assert status().detail is None
        await eventually(lambda: "no heartbeat of the leader for" in str(status().detail), "the detail")
        assert status().connected
        assert (status().silent_s or 0) > 5


@pytest.mark.slow
async def test_a_broker_that_is_killed_or_hangs_loses_nothing(own_kafka: KafkaBroker, store: MetadataStore) -> None:
    topic = Topic(own_kafka.address, new_name())
    await asyncio.to_thread(topic.create)
    async with sending(own_kafka, topic) as sender, reading(topic, store) as reader, sender.beating():
        status = reader.source.status
        await reader.until(lambda: bool(reader.starts), "the start")
        names = await sender.commit(3)
        await received(reader, names)
        own_kafka.kill()
        await eventually(lambda: not status().connected, "a source that is not connected", 60)
        await asyncio.to_thread(own_kafka.start)
        names += await sender.commit(3)
        await received(reader, names)
        own_kafka.pause()
        await eventually(lambda: not status().connected, "a source that is not connected", 60)
        own_kafka.resume()
        names += await sender.commit(3)
        await received(reader, names)
        await eventually(lambda: status().connected, "a source that is connected", 60)
        assert groups(reader) == names
        assert len(reader.gaps) == 1
        reader.source.acknowledge(reader.reached)
    assert topic.committed() is not None


# -- security -------------------------------------------------------------------------------------------


async def first_batch(connection: KafkaTopic, store: MetadataStore, tables: frozenset[str] = TABLES) -> None:
    async with asyncio.timeout(30), aclosing(kafka_source(connection, store).stream(tables)) as stream:
        async for _ in stream:
            return


def secured(broker: KafkaBroker, name: str, protocol: str, **settings: object) -> KafkaTopic:
    trust = {"tls": {"ca": tls.AUTHORITY}} if protocol.endswith("SSL") else {}
    url = parse_stream_url(f"kafka://{broker.listener(protocol)}/{name}")
    return KafkaTopic(url, KafkaSourceSettings.model_validate({**trust, **settings}))


@pytest.fixture
def allowed_topic(secure_kafka: KafkaBroker) -> Topic:
    """A topic that the users may read."""
    topic = Topic(secure_kafka.address, new_name())
    topic.create()
    patterns = [
        ResourcePattern(ResourceType.TOPIC, topic.name, ACLResourcePatternType.LITERAL),
        ResourcePattern(ResourceType.GROUP, f"astha-{GROUP}", ACLResourcePatternType.LITERAL),
    ]
    with admin(secure_kafka.address) as client:
        for user in (KAFKA_USER, "CN=device"):
            client.create_acls(
                [ACL(f"User:{user}", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern) for pattern in patterns]
            )
    return topic


LOGIN = {"user": KAFKA_USER, "password": KAFKA_PASSWORD}
PASSWORD = {"sasl": LOGIN}
CERTIFICATE = {"tls": {"ca": tls.AUTHORITY, "certificate": tls.CLIENT_CERTIFICATE, "key": tls.CLIENT_KEY}}


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("SASL_PLAINTEXT", {"sasl": {**LOGIN, "mechanism": "PLAIN"}}),
        ("SASL_PLAINTEXT", {"sasl": {**LOGIN, "mechanism": "SCRAM-SHA-256"}}),
        ("SASL_SSL", PASSWORD),
        ("SSL", CERTIFICATE),
    ],
)
async def test_passwords_and_certificates(
    secure_kafka: KafkaBroker, allowed_topic: Topic, store: MetadataStore, protocol: str, settings: dict[str, object]
) -> None:
    source = kafka_source(secured(secure_kafka, allowed_topic.name, protocol, **settings), store)
    async with sending(secure_kafka, allowed_topic) as sender, sender.beating(), SourceReader(source, TABLES) as reader:
        await reader.until(lambda: bool(reader.starts), "the start")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_wrong_password_is_an_error_that_says_so(
    secure_kafka: KafkaBroker, allowed_topic: Topic, store: MetadataStore, protocol: str
) -> None:
    settings = {"sasl": {**LOGIN, "password": "not-the-password"}, "connect_timeout_s": 3}
    with pytest.raises(ConfigError, match=f"user '{KAFKA_USER}'.*wrong user name or password") as raised:
        await first_batch(secured(secure_kafka, allowed_topic.name, protocol, **settings), store)
    assert "not-the-password" not in str(raised.value)


async def test_a_certificate_that_is_not_trusted(
    secure_kafka: KafkaBroker, allowed_topic: Topic, store: MetadataStore
) -> None:
    settings = {**PASSWORD, "tls": {}, "connect_timeout_s": 3}
    with pytest.raises(ConfigError, match=r"is not trusted: .* correct `source\.kafka\.tls\.ca`"):
        await first_batch(secured(secure_kafka, allowed_topic.name, "SASL_SSL", **settings), store)


async def test_a_user_who_may_not_read_the_topic(secure_kafka: KafkaBroker, store: MetadataStore) -> None:
    topic = Topic(secure_kafka.address, new_name())
    await asyncio.to_thread(topic.create)
    with pytest.raises(ConfigError, match=f"not authorised: allow user '{KAFKA_USER}' to read topic {topic.name}"):
        await first_batch(secured(secure_kafka, topic.name, "SASL_PLAINTEXT", **PASSWORD), store)


def test_positions_fit_the_metadata_of_an_offset(topic: Topic) -> None:
    from astha.sources.kafka.offsets import Resumption

    most = Resumption(2**62, Position(2**63 - 1), 2**31, "h" * 64)
    assert Resumption.from_metadata(most.to_metadata(), 2**62) == most
    assert Resumption.from_metadata(most.to_metadata(), 5) is None
    assert Resumption.from_metadata("", 5) is None
    topic.commit(most)
    assert topic.committed() == most
