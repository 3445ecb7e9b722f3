"""Everything that uses private parts of aiomqtt: the client below it, which aiomqtt does not show.

aiomqtt's own `publish` ignores the reason code of an acknowledgement, so a refused message looks like an accepted one;
it does not notice a lost connection before its timeout; and it leaves the socket of a failed connection open. The
canaries in `test_aiomqtt_internals.py` fail when a part below has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from aiomqtt import Client
from paho.mqtt.client import MQTT_ERR_SUCCESS, ConnectFlags, error_string
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

OnAcknowledged: TypeAlias = Callable[[int, ReasonCode], None]

_DEFAULT_RECEIVE_MAXIMUM = 65_535  # MQTT 5, 3.2.2.3.3


class BrokerLimits:
    """What the broker allows, as it says when it accepts the connection."""

    def __init__(self) -> None:
        self.receive_maximum = _DEFAULT_RECEIVE_MAXIMUM
        self.maximum_packet_bytes: int | None = None
        self.retain_available = True
        self.qos_1_available = True

    def read(self, properties: Properties) -> None:
        self.receive_maximum = getattr(properties, "ReceiveMaximum", _DEFAULT_RECEIVE_MAXIMUM)
        self.maximum_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        self.retain_available = getattr(properties, "RetainAvailable", 1) == 1
        self.qos_1_available = getattr(properties, "MaximumQoS", 1) == 1


def observe(client: Client, connect_timeout_s: float, on_acknowledged: OnAcknowledged) -> BrokerLimits:
    """Prepares a client before it connects. Returns the limits, which are known once it has connected."""
    paho = client._client
    limits = BrokerLimits()
    on_connect: Callable[..., None] = client._on_connect

    def connected(
        given: PahoClient, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if properties is not None:
            limits.read(properties)
        on_connect(given, userdata, flags, reason, properties)

    def acknowledged(given: PahoClient, userdata: Any, number: int, reason: ReasonCode, properties: Properties) -> None:
        on_acknowledged(number, reason)

    paho.connect_timeout = connect_timeout_s
    paho.on_connect = connected
    paho.on_publish = acknowledged
    return limits


def send(client: Client, topic: str, payload: bytes, properties: Properties, retain: bool) -> int:
    """Sends at QoS 1 without waiting. Returns the number of the packet. Raises ConnectionError."""
    info = client._client.publish(topic, payload, 1, retain, properties)
    if info.rc != MQTT_ERR_SUCCESS:
        raise ConnectionError(error_string(info.rc))
    return info.mid


def abort(client: Client) -> None:
    """Closes the socket at once. The broker then publishes the last will."""
    client._client._sock_close()
    if client._disconnected.done():
        client._disconnected.exception()  # marks it as retrieved
