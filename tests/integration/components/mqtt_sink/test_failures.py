"""Brokers that end, hang, refuse or disappear; and settings that don't fit them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import aiomqtt
import pytest

from astha.events.stream_records import decode_record
from astha.subscribers import Position, Retry, Topic
from astha.testing import FakeRegistry, deliver, make_row
from components.mqtt_sink.subscriber import MqttSink
from registry.embedded_postgres import free_port
from tests.doubles.proxy import PostgresProxy, TcpProxy
from tests.fixtures.mosquitto import MakeMosquitto
from tests.integration.components.mqtt_sink.listener import Listener, Sinks
from tests.servers.mosquitto import Mosquitto, MosquittoOptions, TlsFiles
from tests.tls import AUTHORITY, CERTIFICATE, CLIENT_AUTHORITY, CLIENT_CERTIFICATE, CLIENT_KEY, ENCRYPTED_KEY, KEY
from tests.waiting import eventually


def topic(name: str) -> Topic:
    return make_row(Topic, name=name)


async def delivered(attempt: Awaitable[None]) -> bool:
    try:
        await attempt
    except Retry:
        return False
    return True


async def positions(listener: Listener, prefix: str, kind: str, last: int) -> list[int]:
    """Returns the positions in the order of their arrival, once the last one is there."""

    def found() -> list[int]:
        if kind == "transaction":
            records = [decode_record(message.payload) for message in listener.on(f"{prefix}/transactions")]
            return [record.position for record in records]
        return [int(message.properties["position"]) for message in listener.on(f"{prefix}/topics/#")]

    await eventually(lambda: last in found(), f"position {last}: {found()[-3:]}")
    return found()


def once_in_order(found: list[int], count: int) -> bool:
    """Whether nothing is missing, and repetitions begin where an earlier attempt was acknowledged."""
    return sorted(set(found)) == list(range(1, count + 1)) and list(dict.fromkeys(found)) == sorted(set(found))


async def unhealthy(sink: MqttSink, reason: str) -> None:
    async def says() -> bool:
        try:
            await sink.on_health()
        except Retry as error:
            return reason in str(error)
        return False

    await eventually(says, f"unhealthy: {reason}; {sink._session.error}")


async def test_a_cut_connection_repeats_only_what_was_not_acknowledged(
    mosquitto: Mosquitto, prefix: str, sinks: Sinks
) -> None:
    registry = FakeRegistry()
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, heartbeat_s=60, max_in_flight=10)
        commits = [registry.commit(topic(f"t{number}")) for number in range(400)]
        attempt = asyncio.create_task(delivered(deliver(sink, *commits)))
        await listener.until(f"{prefix}/topics/#", 100)
        proxy.cut()
        assert await attempt is False
        before = len(listener.on(f"{prefix}/topics/#"))
        assert before < 400
        await eventually(lambda: delivered(deliver(sink, *commits)), "delivered")
        changes = await positions(listener, prefix, "change", 400)
        records = await positions(listener, prefix, "transaction", 400)
        assert once_in_order(changes, 400)
        assert once_in_order(records, 400)
        assert len(changes) - 400 <= 10  # at most what was in flight
        assert sink._session.connections == 2
        await deliver(sink, *commits)  # all of it is acknowledged
        assert len(listener.on(f"{prefix}/topics/#")) == len(changes)


async def test_records_name_their_predecessor_after_a_cut(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with (
        PostgresProxy("127.0.0.1", mosquitto.port) as proxy,
        Listener(mosquitto, f"{prefix}/transactions") as listener,
    ):
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, heartbeat_s=60, changes=False)
        commits = [registry.commit(topic(f"t{number}")) for number in range(300)]
        for _ in range(3):
            attempt = asyncio.create_task(delivered(deliver(sink, *commits)))
            await eventually(lambda: bool(sink._done[0]), "something acknowledged")
            proxy.cut()
            await attempt
        await eventually(lambda: delivered(deliver(sink, *commits)), "delivered")
        assert once_in_order(await positions(listener, prefix, "transaction", 300), 300)
        records = [decode_record(message.payload) for message in listener.received]
        assert all(record.previous == record.position - 1 for record in records)


async def test_a_broker_that_is_killed_and_restarted(own_mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    sink = await sinks.start(own_mosquitto.url, prefix, heartbeat_s=60)
    commits = [registry.commit(topic(f"t{number}")) for number in range(800)]
    attempt = asyncio.create_task(delivered(deliver(sink, *commits)))
    await eventually(lambda: sink._done[0] > 100, "a part acknowledged")
    await asyncio.to_thread(own_mosquitto.kill)
    assert await attempt is False
    acknowledged = sink._done[0]
    await unhealthy(sink, "refused")
    await asyncio.to_thread(own_mosquitto.start)
    async with Listener(own_mosquitto, f"{prefix}/#") as listener:
        await eventually(lambda: delivered(deliver(sink, *commits)), "delivered")
        found = await positions(listener, prefix, "change", 800)
        assert found[0] in (acknowledged, acknowledged + 1)
        assert found == list(range(found[0], 801))
        assert await sink.on_health()
        await listener.until(f"{prefix}/daemons/leaders", 1)  # retained messages were lost with the broker


async def test_a_hung_broker_is_left(own_mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    sink = await sinks.start(own_mosquitto.url, prefix, heartbeat_s=60, timeout_s=0.5)
    await deliver(sink, registry.commit(topic("before")))
    commit = registry.commit(topic("after"))
    own_mosquitto.pause()
    try:
        with pytest.raises(Retry, match=r"not acknowledged a message for 0\.5 s"):
            await asyncio.wait_for(deliver(sink, commit), 20)
        await unhealthy(sink, "Operation timed out")
    finally:
        own_mosquitto.resume()
    await eventually(lambda: delivered(deliver(sink, commit)), "delivered")


async def test_a_deaf_connection_is_left_and_stops_in_time(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy:
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, timeout_s=0.5, max_in_flight=7)
        await deliver(sink, registry.commit(topic("before")))
        proxy.go_deaf()
        commits = [registry.commit(topic("x" * 10_000)) for _ in range(200)]
        attempt = asyncio.create_task(delivered(deliver(sink, *commits)))
        link = sink._session.current
        assert link is not None
        await eventually(lambda: link.in_flight > 0, "messages in flight")
        assert link.in_flight <= 7
        assert await asyncio.wait_for(attempt, 20) is False
        await asyncio.wait_for(sink.stop(), 20)


async def test_what_a_cancelled_delivery_sent_counts(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, heartbeat_s=60, timeout_s=30)
        await deliver(sink, registry.commit(topic("first")))
        proxy.go_deaf()
        commit = registry.commit(topic("second"))
        attempt = asyncio.create_task(deliver(sink, commit))
        link = sink._session.current
        assert link is not None
        await eventually(lambda: link.in_flight >= 2, "in flight")
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
        proxy.listen()
        await deliver(sink, commit)
        assert await positions(listener, prefix, "change", 2) == [1, 2]
        assert await positions(listener, prefix, "transaction", 2) == [1, 2]


async def test_nobody_listens_there(prefix: str, sinks: Sinks) -> None:
    sink = await sinks.start(f"mqtt://127.0.0.1:{free_port()}", prefix)
    await unhealthy(sink, "Connection refused")
    with pytest.raises(Retry, match="Connection refused"):
        await deliver(sink, FakeRegistry().commit(topic("a")))


async def test_a_host_that_does_not_exist(prefix: str, sinks: Sinks) -> None:
    sink = await sinks.start("mqtt://no-such-host.invalid", prefix)
    await unhealthy(sink, "no-such-host.invalid:1883")


@pytest.mark.parametrize("credentials", [{}, {"user": "device", "password": "wrong"}])
async def test_a_wrong_password_says_so(
    make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks, credentials: dict[str, Any]
) -> None:
    broker = make_mosquitto(MosquittoOptions(passwords={"device": "secret"}))
    right = await sinks.start(broker.url, prefix, user="device", password="secret")
    await deliver(right, FakeRegistry().commit(topic("a")))
    wrong = await sinks.start(broker.url, prefix, **credentials)
    await unhealthy(wrong, "check `user` and `password`" if credentials else "set `user` and `password`")
    with pytest.raises(Retry, match="Not authorized"):
        await deliver(wrong, FakeRegistry().commit(topic("a")))


async def test_tls_with_a_client_certificate(make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks) -> None:
    tls = TlsFiles(CLIENT_AUTHORITY, CERTIFICATE, KEY, require_certificate=True)
    broker = make_mosquitto(MosquittoOptions(tls=tls))
    client: dict[str, Any] = {"certificate": CLIENT_CERTIFICATE, "key": CLIENT_KEY}
    sink = await sinks.start(broker.tls_url, prefix, tls={"ca": AUTHORITY, **client})
    await deliver(sink, FakeRegistry().commit(topic("a")))
    without = await sinks.start(broker.tls_url, prefix, tls={"ca": AUTHORITY})
    await unhealthy(without, "MQTT broker 127.0.0.1")
    untrusted = await sinks.start(broker.tls_url, prefix, tls={"ca": CLIENT_AUTHORITY, **client})
    await unhealthy(untrusted, "TLS failed")
    missing = await sinks.start(broker.tls_url, prefix, tls={"ca": "/no/such/file"})
    await unhealthy(missing, "`tls.ca` /no/such/file can't be read")
    other = await sinks.start(broker.tls_url, prefix, tls={"ca": AUTHORITY, **client, "key": KEY})
    await unhealthy(other, "can't be used")
    pair = {"certificate": CERTIFICATE, "key": ENCRYPTED_KEY}
    encrypted = await sinks.start(broker.tls_url, prefix, tls={"ca": AUTHORITY, **pair})
    await unhealthy(encrypted, "is `tls.key_password` right?")


async def test_a_second_client_with_the_same_identifier(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    sink = await sinks.start(mosquitto.url, prefix, client_id=prefix)
    await sink._session.link()
    other = aiomqtt.Client("127.0.0.1", mosquitto.port, identifier=prefix, protocol=aiomqtt.ProtocolVersion.V5)
    async with other:
        await eventually(lambda: sink._session.error is not None, "connection lost")
        assert f"does another client use the identifier '{prefix}'?" in str(sink._session.error)
        await eventually(lambda: delivered(deliver(sink, FakeRegistry().commit(topic("a")))), "delivered")
        with pytest.raises(aiomqtt.MqttError):
            await anext(other.messages)  # it was taken over in turn


async def test_access_control_that_denies_a_topic(make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks) -> None:
    acl = ["user device", f"topic readwrite {prefix}/topics/#", f"topic readwrite {prefix}/components/#"]
    broker = make_mosquitto(MosquittoOptions(passwords={"device": "secret"}, acl=acl))
    login: dict[str, Any] = {"user": "device", "password": "secret"}
    allowed = await sinks.start(broker.url, prefix, transactions=False, **login)
    await deliver(allowed, FakeRegistry().commit(topic("a")))
    denied = await sinks.start(broker.url, prefix, heartbeat_s=60, **login)
    with pytest.raises(Retry, match=rf"refuses {prefix}/transactions .*[Nn]ot authorized"):
        await deliver(denied, FakeRegistry().commit(topic("a")))
    await eventually(lambda: any("daemons" in problem.reason for problem in denied.problems()), "the denied state")


async def test_a_topic_that_is_denied_and_allowed_again(
    make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks
) -> None:
    everything = ["user device", f"topic readwrite {prefix}/#"]
    broker = make_mosquitto(MosquittoOptions(passwords={"device": "secret"}, acl=everything))
    registry = FakeRegistry()
    async with Listener(broker, f"{prefix}/#", username="device", password="secret") as listener:
        sink = await sinks.start(broker.url, prefix, heartbeat_s=60, user="device", password="secret")
        await deliver(sink, registry.commit(topic("a")))
        broker.allow(["user device", f"topic read {prefix}/#"])
        broker.reload()
        second = registry.commit(topic("b"))
        with pytest.raises(Retry):
            await deliver(sink, second)
        broker.allow(everything)
        broker.reload()
        await eventually(lambda: delivered(deliver(sink, second)), "what was denied")
        await deliver(sink, registry.commit(topic("c")))
        found = await positions(listener, prefix, "transaction", 3)
    assert once_in_order(found, 3)


async def test_a_slow_connection_delays_and_memory_is_bounded(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    commits = [registry.commit(topic(f"{number:04}" + "x" * 200)) for number in range(300)]
    async with TcpProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        url = f"mqtt://127.0.0.1:{proxy.port}"
        sink = await sinks.start(url, prefix, heartbeat_s=60, max_in_flight=20, changes=False, timeout_s=60)
        link = await sink._session.link()
        proxy.throttle(100_000)
        delivering = asyncio.create_task(deliver(sink, *commits))
        most = 0
        while not delivering.done():
            most = max(most, link.in_flight)
            await asyncio.sleep(0.001)
        await delivering
        proxy.throttle(None)
        found = await positions(listener, prefix, "transaction", 300)
    assert found == list(range(1, 301))
    assert 10 < most <= 20


async def test_a_broker_without_memory_delays_and_loses_nothing(
    make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks
) -> None:
    """Mosquitto disconnects a client whose packet needs more memory than it may use."""
    broker = make_mosquitto()
    registry = FakeRegistry()
    async with Listener(broker, f"{prefix}/#") as listener:
        sink = await sinks.start(broker.url, prefix, heartbeat_s=60, changes=False)
        await deliver(sink, registry.commit(topic("a")))
        await listener.until(f"{prefix}/transactions", 1)
        broker.configure(memory_limit=1)
        broker.reload()
        second = registry.commit(topic("b" * 50_000))
        with pytest.raises(Retry):
            await deliver(sink, second)
    broker.configure(memory_limit=0)
    broker.restart()  # without memory it can't read its options either
    async with Listener(broker, f"{prefix}/#") as listener:
        await eventually(lambda: delivered(deliver(sink, second)), "what was refused")
        await deliver(sink, registry.commit(topic("c")))
        found = await positions(listener, prefix, "transaction", 3)
    assert once_in_order([1, *found], 3)


async def test_a_broker_that_limits_messages(make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks) -> None:
    broker = make_mosquitto(MosquittoOptions(settings={"max_packet_size": 3_000, "max_inflight_messages": 5}))
    async with Listener(broker, f"{prefix}/#") as listener:
        sink = await sinks.start(broker.url, prefix)
        registry = FakeRegistry()
        await deliver(sink, *[registry.commit(topic(f"t{number}")) for number in range(50)])
        link = sink._session.current
        assert link is not None
        assert link._most == 5
        await deliver(sink, registry.commit(topic("x" * 2_000)))
        large = (await listener.until(f"{prefix}/topics/#", 51))[-1]
    assert large.payload == b""
    assert "omitted" in large.properties


async def test_a_broker_that_does_not_announce_its_limit(
    make_mosquitto: MakeMosquitto, prefix: str, sinks: Sinks
) -> None:
    broker = make_mosquitto(MosquittoOptions(settings={"message_size_limit": 3_000}))
    async with Listener(broker, f"{prefix}/#") as listener:
        commit = FakeRegistry().commit(topic("x" * 4_000))
        with pytest.raises(Retry, match="lower `max_payload_bytes`"):
            await deliver(await sinks.start(broker.url, prefix), commit)
        await deliver(await sinks.start(broker.url, prefix, max_payload_bytes=3_000), commit)
        (large,) = await listener.until(f"{prefix}/topics/#", 1)
    assert large.payload == b""


async def test_a_refresh_that_fails_begins_again(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    registry = FakeRegistry()
    registry.commit(*(topic(f"t{number}") for number in range(500)))
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, heartbeat_s=0.05, max_in_flight=10)

        async def refresh() -> None:
            sink.resume_at(Position(1), 7)
            await sink.on_refresh(registry.snapshot())

        attempt = asyncio.create_task(delivered(refresh()))
        await listener.until(f"{prefix}/topics/read/+", 50)
        proxy.cut()
        assert await attempt is False
        await eventually(lambda: delivered(refresh()), "refreshed")
        notices = [message.json() for message in await listener.until(f"{prefix}/refresh", 3)]
        whole = notices[-1]["refresh"]
        reads = [message for message in listener.received if message.properties.get("refresh") == whole]
    assert [notice["state"] for notice in notices] == ["BEGIN"] * (len(notices) - 1) + ["END"]
    assert len({message.topic for message in reads if "/read/" in message.topic}) == 500


async def test_a_stop_while_it_connects(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy:
        proxy.go_deaf()
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, timeout_s=30)
        await eventually(lambda: proxy.connections > 0, "a connection begins")
        await asyncio.wait_for(sink.stop(), 10)
        proxy.listen()
        await sink.start()
        await eventually(lambda: delivered(deliver(sink, FakeRegistry().commit(topic("a")))), "delivered")


async def test_a_stop_that_is_cancelled_disconnects(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy:
        sink = await sinks.start(f"mqtt://127.0.0.1:{proxy.port}", prefix, timeout_s=30)
        link = await sink._session.link()
        proxy.go_deaf()
        stopping = asyncio.create_task(sink.stop())
        await eventually(lambda: link.in_flight > 0, "the states are on their way")
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert link.error is not None
        assert sink._session.current is None


async def test_the_check_tells_whether_the_broker_accepts_it(mosquitto: Mosquitto, prefix: str, sinks: Sinks) -> None:
    sink = await sinks.start(mosquitto.url, prefix, client_id=prefix)
    await sink._session.link()
    (passed,) = await sink.check()
    assert passed.remedy is None
    assert sink._session.connections == 1
    (failed,) = await (await sinks.start(f"mqtt://127.0.0.1:{free_port()}", prefix)).check()
    assert "Connection refused" in failed.detail
    assert failed.remedy is not None
