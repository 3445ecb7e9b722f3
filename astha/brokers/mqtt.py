"""Opens aiomqtt's clients, and says why a broker can't be used.

aiomqtt's own `publish` ignores the reason code of an acknowledgement, so a refused message looks like an accepted one;
it does not notice a lost connection before its timeout; it leaves the socket of a failed connection open; and a
cancelled attempt to connect goes on in its thread. What helps uses the client below it, which aiomqtt does not show.
The canaries in `test_library_internals.py` fail when a private part that is used below has changed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
from aiomqtt import Client, Message, MqttCodeError, MqttError, ProtocolVersion, Will
from paho.mqtt.client import MQTT_ERR_SUCCESS, ConnectFlags, error_string
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from pydantic import SecretStr

from astha.brokers.errors import BrokerError
from astha.brokers.tls import tls_context
from astha.settings.brokers import TlsSettings

OnAcknowledged: TypeAlias = Callable[[int, ReasonCode], None]

_DEFAULT_RECEIVE_MAXIMUM = 65_535  # MQTT 5, 3.2.2.3.3
_MAX_CONNECT_S = 5.0
_REFUSED = 0x80
"""Reason codes from here on are errors: MQTT 5, section 2.4."""

_REMEDIES = {
    0x80: "the connection was lost: the broker closed it, or the network failed",
    0x82: "if it refuses a message as too large, lower `{group}max_payload_bytes`",
    0x84: "it does not speak MQTT 5; use a broker that does",
    0x85: "it refuses the client identifier; set `{group}client_id`",
    0x86: "wrong user name or password; correct `{group}user` and `{group}password`",
    0x87: "not authorized; check `{group}user` and `{group}password`, and the broker's access control",
    0x88: "the broker is unavailable",
    0x89: "the broker is busy",
    0x8A: "the broker has banned this client",
    0x8C: "it requires another way to authenticate than a user name and a password",
    0x8E: "another client uses the same client identifier; give each its own `{group}client_id`, or none",
    0x90: "it refuses the topic's name; choose another prefix",
    0x93: "more messages in flight than it allows; lower `{group}max_in_flight`",
    0x95: "the message is too large for it; lower `{group}max_payload_bytes`, or raise the broker's limit",
    0x97: "a quota of the broker is exceeded",
    0x99: "it refuses the payload's format",
    0x9A: "it supports no retained messages; use a broker that does",
    0x9B: "it does not support QoS 1; use a broker that does",
}
_LASTING = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8E})
_TLS_SIGNS = ("SSL", "TLS", "CERTIFICATE")

_library_log = logging.getLogger(f"{__name__}.client")
_library_log.setLevel(logging.CRITICAL)  # it logs every attempt; its user reports the cause once

_abandoned: set[asyncio.Task[Client]] = set()
"""Connections that are being opened in a thread, and that are closed as soon as they are open."""


class MqttConnection(msgspec.Struct, frozen=True):
    """How to connect to a broker. `group` is the name of its settings in errors, with a dot at its end."""

    host: str
    port: int
    user: str | None
    password: SecretStr | None
    tls: TlsSettings | None
    keepalive_s: int
    timeout_s: float
    group: str = ""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def client(
        self, identifier: str, will: Will | None = None, queue: asyncio.Queue[Message] | None = None
    ) -> Client:
        """Returns a client that is not connected yet. Raises BrokerError if the TLS files can't be used."""
        context: ssl.SSLContext | None = None
        if self.tls is not None:
            context = await asyncio.to_thread(tls_context, self.tls, f"{self.group}tls")
        options: dict[str, Any] = {} if queue is None else {"queue_type": lambda maxsize: queue}
        client = Client(
            self.host,
            self.port,
            username=self.user,
            password=None if self.password is None else self.password.get_secret_value(),
            identifier=identifier,
            protocol=ProtocolVersion.V5,
            will=will,
            clean_start=True,
            timeout=self.timeout_s,
            keepalive=self.keepalive_s,
            max_inflight_messages=0,  # the sender limits them, by what the broker allows
            tls_context=context,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            logger=_library_log,
            **options,
        )
        client._client.connect_timeout = min(self.timeout_s, _MAX_CONNECT_S)
        return client

    async def connect(self, client: Client) -> None:
        """Raises BrokerError. A call that fails or is cancelled leaves no connection behind."""
        opening = asyncio.create_task(client.__aenter__(), name="MQTT connection")
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            _abandoned.add(opening)
            opening.add_done_callback(lambda done: _abandon(client, done))
            raise
        except (MqttError, OSError, ValueError) as error:
            abort(client)
            raise self.explain(error) from error

    @asynccontextmanager
    async def connected(self, identifier: str, queue: asyncio.Queue[Message] | None = None) -> AsyncIterator[Client]:
        """Raises BrokerError, also for errors of aiomqtt inside."""
        client = await self.client(identifier, queue=queue)
        await self.connect(client)
        try:
            yield client
        except (MqttError, OSError) as error:
            raise self.explain(error) from error
        finally:
            try:
                await client.__aexit__(None, None, None)
            except (MqttError, OSError):
                pass  # the connection is lost
            finally:
                abort(client)

    def explain(self, error: BaseException) -> BrokerError:
        """Translates an error of connecting, or the cause of a lost connection."""
        broker = f"MQTT broker {self.address}"
        reason = error.rc if isinstance(error, MqttCodeError) else None
        if isinstance(reason, ReasonCode):
            if reason.value in (0x86, 0x87) and self.user is None:
                return BrokerError(
                    f"{broker}: {reason} (code {reason.value:#04x}): it requires a user and a password: set "
                    f"`{self.group}user` and `{self.group}password`",
                    lasting=True,
                )
            return BrokerError(f"{broker}: {self.describe(reason)}", reason.value in _LASTING)
        if isinstance(error, MqttError) and error.__cause__ is not None:
            return self.explain(error.__cause__)
        text = str(error) or repr(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return BrokerError(
                f"{broker}: TLS failed: its certificate is not trusted: {text}; correct `{self.group}tls.ca`, or "
                f"`{self.group}tls.check_hostname` if it is for another name",
                lasting=True,
            )
        if any(sign in text.upper() for sign in _TLS_SIGNS):
            return BrokerError(
                f"{broker}: TLS failed: {text}; does this listener use TLS? check `{self.group}tls` and the host", True
            )
        return BrokerError(f"{broker}: {text}")

    def describe(self, reason: ReasonCode) -> str:
        """Returns a reason code of the broker, with the remedy."""
        shown = f"{reason} (code {reason.value:#04x})"
        if reason.value in (0x86, 0x87) and self.user is not None:
            shown += f" of user {self.user!r}"
        remedy = _REMEDIES.get(reason.value, "").format(group=self.group)
        return f"{shown}: {remedy}" if remedy else shown


def accepted(reason: Any) -> bool:
    """Whether a reason code, or the number of one, means success."""
    return bool(int(getattr(reason, "value", reason)) < _REFUSED)


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


def observe(client: Client, on_acknowledged: OnAcknowledged) -> BrokerLimits:
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


def _abandon(client: Client, opening: asyncio.Task[Client]) -> None:
    _abandoned.discard(opening)
    if not opening.cancelled():
        opening.exception()  # marks it as retrieved
    abort(client)
