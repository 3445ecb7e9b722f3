"""Reads one message of a stream, for `astha check`."""

from __future__ import annotations

import asyncio
import secrets

from astha.brokers.errors import BrokerError
from astha.errors import ConfigError, SourceLost
from astha.sources.mqtt.message_queue import payload_of
from astha.sources.mqtt.stream import MqttStream


async def next_payload(stream: MqttStream, within_s: float) -> bytes | None:
    """Returns the next message that arrives, or None. Raises ConfigError, or SourceLost if the broker is not
    reachable.
    """
    try:
        async with stream.subscribed(f"astha-check-{secrets.token_hex(4)}") as client:
            try:
                async with asyncio.timeout(within_s):
                    return payload_of(await anext(client.messages))
            except TimeoutError:
                return None
    except BrokerError as error:
        raise (ConfigError if error.lasting else SourceLost)(str(error)) from error
