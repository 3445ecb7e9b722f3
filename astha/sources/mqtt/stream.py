"""The MQTT topic that a follower reads, and how to connect to its broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiomqtt import Client, Message
from pydantic import SecretStr

from astha.brokers.errors import BrokerError
from astha.brokers.mqtt import MqttConnection, accepted
from astha.settings.brokers import TlsSettings
from astha.settings.source import MqttSourceSettings, StreamAddress


class MqttStream(msgspec.Struct, frozen=True):
    address: StreamAddress
    settings: MqttSourceSettings

    @property
    def topic(self) -> str:
        return f"{self.address.name}/transactions"

    @property
    def connection(self) -> MqttConnection:
        address, settings = self.address, self.settings
        host, port = address.servers[0]
        user, password = settings.user, settings.password
        if address.user is not None:
            user, password = address.user, SecretStr(address.password or "")
        tls = (settings.tls or TlsSettings()) if address.tls else None
        return MqttConnection(
            host, port, user, password, tls, settings.keepalive_s, settings.connect_timeout_s, "source.mqtt."
        )

    @asynccontextmanager
    async def subscribed(self, identifier: str, queue: asyncio.Queue[Message] | None = None) -> AsyncIterator[Client]:
        """A client that receives the stream, at QoS 1. Raises BrokerError, also when the connection is lost later."""
        async with self.connection.connected(identifier, queue) as client:
            granted = await client.subscribe(self.topic, qos=1)
            if not all(map(accepted, granted)):
                who = f"user {self.connection.user!r}" if self.connection.user else "this client"
                raise BrokerError(
                    f"the broker does not allow to subscribe to {self.topic}: allow it to {who}", lasting=True
                )
            yield client
