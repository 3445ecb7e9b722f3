"""The broker that other tests rely on: what they break works as they expect."""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest

from tests.fixtures.mosquitto import MakeMosquitto
from tests.servers.mosquitto import Mosquitto, MosquittoOptions, TlsFiles
from tests.tls import AUTHORITY, CERTIFICATE, KEY


def _client(broker: Mosquitto, **options: object) -> aiomqtt.Client:
    return aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5, **options)  # type: ignore[arg-type]  # of any kind


async def _echo(client: aiomqtt.Client, topic: str) -> bytes:
    async with client:
        await client.subscribe(topic, qos=1)
        await client.publish(topic, b"hello", qos=1)
        message = await asyncio.wait_for(anext(client.messages), 30)
        assert isinstance(message.payload, bytes)
        return message.payload


async def test_it_serves_again_after_it_was_killed(own_mosquitto: Mosquitto) -> None:
    assert await _echo(_client(own_mosquitto), "a") == b"hello"
    own_mosquitto.restart()
    assert await _echo(_client(own_mosquitto), "a") == b"hello"


async def test_two_brokers_run_at_once(mosquitto: Mosquitto, own_mosquitto: Mosquitto) -> None:
    assert mosquitto.port != own_mosquitto.port
    assert await _echo(_client(mosquitto), "test_two_brokers") == b"hello"
    assert await _echo(_client(own_mosquitto), "test_two_brokers") == b"hello"


async def test_it_asks_for_passwords(make_mosquitto: MakeMosquitto) -> None:
    broker = make_mosquitto(MosquittoOptions(passwords={"device": "secret"}))
    assert await _echo(_client(broker, username="device", password="secret"), "a") == b"hello"
    for wrong in ({}, {"username": "device", "password": "other"}):
        with pytest.raises(aiomqtt.MqttError, match="Not authorized"):
            async with _client(broker, **wrong):
                pass


async def test_it_speaks_tls(make_mosquitto: MakeMosquitto) -> None:
    broker = make_mosquitto(MosquittoOptions(tls=TlsFiles(AUTHORITY, CERTIFICATE, KEY)))
    assert broker.tls_port is not None
    client = aiomqtt.Client(
        "127.0.0.1",
        broker.tls_port,
        protocol=aiomqtt.ProtocolVersion.V5,
        tls_params=aiomqtt.TLSParameters(ca_certs=str(AUTHORITY)),
    )
    assert await _echo(client, "a") == b"hello"


async def test_it_hangs_and_wakes(own_mosquitto: Mosquitto) -> None:
    async with _client(own_mosquitto) as client:
        own_mosquitto.pause()
        pending = asyncio.create_task(client.publish("a", b"hello", qos=1, timeout=30))
        done, _ = await asyncio.wait({pending}, timeout=0.2)
        own_mosquitto.resume()
        await pending
        assert not done
