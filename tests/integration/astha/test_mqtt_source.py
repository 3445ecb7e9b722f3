"""A follower over MQTT: outages, a slow consumer, passwords."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from astha.errors import ConfigError
from astha.sources.contract import Gap, Started
from astha.sources.mqtt.source import MqttSource
from registry.contract import MetadataStore
from registry.models import ConsumerGroup
from tests import tls
from tests.doubles.proxy import TcpProxy
from tests.fixtures.followers import GROUP, ScriptedSender, mqtt_publisher, mqtt_source, new_name
from tests.fixtures.mosquitto import MakeMosquitto
from tests.fixtures.sources import SourceReader
from tests.fixtures.stores import OpenStore
from tests.servers.mosquitto import Mosquitto, MosquittoOptions, TlsFiles
from tests.waiting import eventually

TABLES = frozenset({ConsumerGroup.table})


@pytest.fixture
async def store(opened: OpenStore, sqlite_url: str) -> MetadataStore:
    return await opened(sqlite_url)


@pytest.fixture
def prefix() -> str:
    return new_name()


@pytest.fixture
async def sender(mosquitto: Mosquitto, prefix: str) -> AsyncIterator[ScriptedSender]:
    async with mqtt_publisher(mosquitto, prefix) as publisher:
        yield ScriptedSender(publisher)


def groups(reader: SourceReader) -> list[str]:
    return [event.data.group_id for event in reader.events if isinstance(event.data, ConsumerGroup)]


async def received(reader: SourceReader, names: list[str]) -> None:
    await reader.until(lambda: set(names) <= set(groups(reader)), f"{names}")


async def started(reader: SourceReader) -> None:
    await reader.until(lambda: bool(reader.starts), "the start")


async def test_a_first_start_and_a_restart(
    mosquitto: Mosquitto, prefix: str, sender: ScriptedSender, store: MetadataStore
) -> None:
    url = f"{mosquitto.url}/{prefix}"
    async with sender.beating():
        async with SourceReader(mqtt_source(url, store), TABLES) as first:
            await started(first)
            names = await sender.commit(3)
            await received(first, names)
            assert groups(first) == names
            assert len(first.gaps) == 1
        async with SourceReader(mqtt_source(url, store), TABLES) as second:
            await started(second)
    assert second.gaps == [], "the same history: components continue if they lack nothing"
    assert second.starts == [first.reached]
    found = await store.get_source_identity(f"follower:{GROUP}")
    assert found is not None
    assert found.identity == "first"


async def test_a_restart_in_another_history(
    mosquitto: Mosquitto, prefix: str, sender: ScriptedSender, store: MetadataStore
) -> None:
    await store.record_source_identity(f"follower:{GROUP}", "earlier")
    async with sender.beating(), SourceReader(mqtt_source(f"{mosquitto.url}/{prefix}", store), TABLES) as reader:
        await started(reader)
    assert len(reader.gaps) == 1


async def test_a_connection_that_is_cut_loses_what_is_sent_meanwhile(
    mosquitto: Mosquitto, prefix: str, sender: ScriptedSender, store: MetadataStore
) -> None:
    async with TcpProxy("127.0.0.1", mosquitto.port) as proxy:
        source = mqtt_source(f"mqtt://127.0.0.1:{proxy.port}/{prefix}", store)
        async with sender.beating(), SourceReader(source, TABLES) as reader:
            await started(reader)
            names = await sender.commit(2)
            await received(reader, names)
            proxy.cut()
            await reader.until(lambda: len(reader.starts) == 2, "another start")
            assert reader.starts[1] == reader.transactions[-1].position, "nothing was missing"
            proxy.refuse()
            await eventually(lambda: not source.status().connected, "a source that is not connected")
            assert "127.0.0.1" in str(source.status().detail)
            await sender.commit(2)
            proxy.accept()
            await reader.until(lambda: len(reader.starts) == 3, "another start")
            assert reader.starts[2] == sender.at, "components that had received less refresh"
            names += await sender.commit(2)
            await received(reader, names)
    assert groups(reader) == names
    assert len(reader.gaps) == 1


async def test_a_broker_that_hangs_or_is_restarted(own_mosquitto: Mosquitto, prefix: str, store: MetadataStore) -> None:
    source = mqtt_source(f"{own_mosquitto.url}/{prefix}", store, keepalive_s=1, connect_timeout_s=1)
    async with SourceReader(source, TABLES) as reader:
        async with mqtt_publisher(own_mosquitto, prefix) as publisher:
            sender = ScriptedSender(publisher)
            async with sender.beating():
                await started(reader)
                await received(reader, await sender.commit())
        own_mosquitto.pause()
        await eventually(lambda: not source.status().connected, "a source that is not connected", 60)
        own_mosquitto.resume()
        await eventually(lambda: source.status().connected, "a source that is connected", 60)
        await asyncio.to_thread(own_mosquitto.restart)
        async with mqtt_publisher(own_mosquitto, prefix) as publisher:
            later = ScriptedSender(publisher, at=sender.at)
            async with later.beating():
                await reader.until(lambda: len(reader.starts) >= 2, "another start")
                await received(reader, await later.commit())
    assert len(reader.gaps) == 1


@pytest.mark.parametrize("limit", [{"max_queued": 20}, {"max_queued_bytes": 8_000}])
async def test_a_slow_consumer_drops_everything_and_is_told(
    mosquitto: Mosquitto, prefix: str, sender: ScriptedSender, store: MetadataStore, limit: dict[str, int]
) -> None:
    source = mqtt_source(f"{mosquitto.url}/{prefix}", store, **limit)
    seen: list[str] = []
    starts = 0
    async with aclosing(source.stream(TABLES)) as stream, sender.beating():
        assert isinstance(await anext(stream), Gap)
        assert isinstance(await anext(stream), Started)
        dropped = await sender.commit(300)  # while nothing is taken
        while not starts or sender_is_ahead(sender, seen):
            batch = await anext(stream)
            starts += isinstance(batch, Started)
            if isinstance(batch, list):
                seen += [event.data.group_id for item in batch for event in item.events]
            if starts and sender_is_ahead(sender, seen):
                await sender.commit()
    assert starts
    assert len(set(dropped) & set(seen)) < 300


def sender_is_ahead(sender: ScriptedSender, seen: list[str]) -> bool:
    return f"g{sender.at}" not in seen


async def test_a_table_that_is_not_sent(
    mosquitto: Mosquitto, prefix: str, sender: ScriptedSender, store: MetadataStore
) -> None:
    async with sender.beating():
        with pytest.raises(ConfigError, match="group astha do not send changes of topics"):
            await first_batch(mqtt_source(f"{mosquitto.url}/{prefix}", store), TABLES | {"topics"})


async def test_no_leader_shows_in_the_status(mosquitto: Mosquitto, prefix: str, store: MetadataStore) -> None:
    source = mqtt_source(f"{mosquitto.url}/{prefix}", store)
    async with SourceReader(source, TABLES):
        await eventually(lambda: "no heartbeat of the leader for" in str(source.status().detail), "the detail")
        assert source.status().connected


# -- security -------------------------------------------------------------------------------------------


async def first_batch(source: MqttSource, tables: frozenset[str] = TABLES) -> None:
    async with asyncio.timeout(30), aclosing(source.stream(tables)) as stream:
        async for _ in stream:
            return


PASSWORDS = {"alice": "down-the-hole"}


async def test_a_user_with_a_password(make_mosquitto: MakeMosquitto, prefix: str, store: MetadataStore) -> None:
    broker = make_mosquitto(MosquittoOptions(passwords=PASSWORDS))
    where = f"127.0.0.1:{broker.port}/{prefix}"
    sources = [
        mqtt_source(f"mqtt://alice:down-the-hole@{where}", store),
        mqtt_source(f"mqtt://{where}", store, user="alice", password="down-the-hole"),
    ]
    for source in sources:
        async with SourceReader(source, TABLES):
            await eventually(lambda source=source: source.status().connected, "a connection")  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"user 'alice': .*check `source\.mqtt\.user`") as raised:
        await first_batch(mqtt_source(f"mqtt://alice:not-the-password@{where}", store))
    assert "not-the-password" not in str(raised.value)
    with pytest.raises(ConfigError, match="requires a user and a password"):
        await first_batch(mqtt_source(f"mqtt://{where}", store))


async def test_tls_and_client_certificates(make_mosquitto: MakeMosquitto, prefix: str, store: MetadataStore) -> None:
    files = TlsFiles(tls.CLIENT_AUTHORITY, tls.CERTIFICATE, tls.KEY, require_certificate=True)
    broker = make_mosquitto(MosquittoOptions(tls=files))
    url = f"mqtts://127.0.0.1:{broker.tls_port}/{prefix}"
    pair = {"certificate": tls.CLIENT_CERTIFICATE, "key": tls.CLIENT_KEY}
    source = mqtt_source(url, store, tls={"ca": tls.AUTHORITY, **pair})
    async with SourceReader(source, TABLES):
        await eventually(lambda: source.status().connected, "a connection")
    with pytest.raises(ConfigError, match=r"is not trusted: .*correct `source\.mqtt\.tls\.ca`"):
        await first_batch(mqtt_source(url, store))
    with pytest.raises(ConfigError, match=r"`source\.mqtt\.tls\.ca` .* can't be read"):
        await first_batch(mqtt_source(url, store, tls={"ca": tls.KEY}))
