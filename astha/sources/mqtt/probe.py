"""Reads one message of a stream, for `astha check`."""

from __future__ import annotations

import asyncio
import secrets

from aiomqtt import MqttError

from astha.errors import ConfigError, SourceLost
from astha.sources.mqtt.message_queue import payload_of
from astha.sources.mqtt.source import MqttConnection


async def next_payload(connection: MqttConnection, within_s: float) -> bytes | None:
    """Returns the next message that arrives, or None. Raises ConfigError, or SourceLost if the broker is not
    reachable.
    """
    try:
        async with connection.client(f"astha-check-{secrets.token_hex(4)}") as client:
            await client.subscribe(connection.topic, qos=1)
            try:
                async with asyncio.timeout(within_s):
                    return payload_of(await anext(client.messages))
            except TimeoutError:
                return None
    except (MqttError, OSError) as error:
        refusal = connection.refusal(error)
        if refusal is not None:
            raise ConfigError(refusal) from error
        raise SourceLost(f"{connection.address.hosts[0]}: {error}") from error
