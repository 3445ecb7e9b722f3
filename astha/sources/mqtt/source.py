"""The transaction stream on an MQTT topic as a `Source`. It is live only: what is missing shows in the records."""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, cast

import msgspec
import structlog
from aiomqtt import Client, MqttError, ProtocolVersion
from aiomqtt.exceptions import MqttConnectError

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import ConfigError, SourceLost
from astha.settings.source import MqttSourceSettings, StreamAddress
from astha.sources.broker_tls import tls_context
from astha.sources.contract import Batch, SourceStatus
from astha.sources.follower import Follower
from astha.sources.mqtt.message_queue import MessageQueue, payload_of
from astha.tasks import raise_if_cancelled
from registry.contract import MetadataStore
from registry.position import Position

log = structlog.get_logger(__name__)

_RECONNECT = Backoff(initial_s=0.1, max_s=5.0)
_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
_AT_ONCE = 256
"""Messages that are taken together, if they have arrived."""

_REFUSED = 128
"""Reason codes from here on are errors: MQTT 5, section 2.4."""

_WRONG_CREDENTIALS = frozenset({4, 5, 134, 135, 140})
"""Bad user name or password, not authorised, bad authentication method: in MQTT 3 and 5."""

_library_log = logging.getLogger("astha.mqtt")
_library_log.addHandler(logging.NullHandler())
_library_log.propagate = False  # it logs every attempt; the source reports the cause once


class MqttConnection(msgspec.Struct, frozen=True):
    """Where a stream is, and how to connect to its broker."""

    address: StreamAddress
    settings: MqttSourceSettings

    @property
    def topic(self) -> str:
        return f"{self.address.name}/transactions"

    @property
    def user(self) -> str | None:
        return self.address.user or self.settings.user

    def client(self, identifier: str, queue: MessageQueue | None = None) -> Client:
        """Raises ConfigError if the TLS files can't be used."""
        settings, (host, port) = self.settings, self.address.servers[0]
        password = settings.password
        options: dict[str, Any] = {} if queue is None else {"queue_type": lambda maxsize: queue}
        return Client(
            host,
            port,
            username=self.user,
            password=self.address.password or (None if password is None else password.get_secret_value()),
            identifier=identifier,
            protocol=ProtocolVersion.V5,
            clean_start=True,
            keepalive=settings.keepalive_s,
            timeout=settings.connect_timeout_s,
            tls_context=tls_context(settings, "source.mqtt") if settings.tls or self.address.tls else None,
            socket_options=[_NODELAY],
            logger=_library_log,
            **options,
        )

    def refusal(self, error: BaseException) -> str | None:
        """Returns what an operator has to correct, or None if the broker may only be away."""
        where = self.address.hosts[0]
        if isinstance(error, MqttConnectError) and _code(error) in _WRONG_CREDENTIALS:
            if self.user is None:
                return f"the broker at {where} requires a user and a password: set source.mqtt.user and password"
            return f"the broker at {where} refused user {self.user!r}: wrong name or password"
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return f"the certificate of the broker at {where} is not trusted: set source.mqtt.ca_file"
            if isinstance(cause, ssl.SSLError):
                return f"TLS with the broker at {where} failed: {cause.reason}: does this listener use TLS?"
            cause = cause.__cause__ or cause.__context__
        return None


class SubscriptionRefused(SourceLost):
    pass


class MqttSource:
    """Subscribes to PREFIX/transactions at QoS 1, with a clean start."""

    def __init__(
        self,
        connection: MqttConnection,
        store: MetadataStore,
        group: str,
        clock: LoopClock,
        unit: Literal["bytes", "changes"] = "bytes",
    ) -> None:
        self._connection = connection
        self._store = store
        self._group = group
        self._clock = clock
        self._unit: Literal["bytes", "changes"] = unit
        self._acknowledged = Position(0)
        self._follower: Follower | None = None
        self._failure: str | None = "not streaming"
        self._connected_once = False

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        follower = Follower(self._store, self._group, tables, self._clock)
        history = await follower.recorded_history()
        if history is not None:
            follower.continuity.resume(history)
        self._follower, self._acknowledged, self._failure = follower, Position(0), "connecting"
        self._connected_once, failures = False, 0
        try:
            while True:
                try:
                    async with aclosing(self._read(follower)) as batches:
                        async for batch in batches:
                            failures = 0
                            yield batch
                except (MqttError, SourceLost, OSError) as error:
                    failures += 1
                    self._note_failure(error)
                raise_if_cancelled()
                follower.continuity.interrupted()
                await self._clock.sleep(_RECONNECT.wait_s(failures, self._clock))
        finally:
            self._failure = "not streaming"

    async def _read(self, follower: Follower) -> AsyncGenerator[Batch, None]:
        """Yields batches of one connection. Raises MqttError, SourceLost or OSError when it is lost."""
        settings = self._connection.settings
        queue = MessageQueue(settings.max_queued, settings.max_queued_bytes)
        identifier = f"astha-{self._group}-{secrets.token_hex(4)}"
        async with self._connection.client(identifier, queue) as client:
            granted = await client.subscribe(self._connection.topic, qos=1)
            raise_if_cancelled()
            if any(_code(code) >= _REFUSED for code in cast("tuple[Any, ...]", granted)):
                raise SubscriptionRefused(f"the broker does not allow to subscribe to {self._connection.topic}")
            if self._failure != "connecting":
                log.info("source connected again", source=self._connection.address.shown)
            self._connected_once, self._failure = True, None
            async for message in client.messages:
                records = [(0, payload_of(message))]
                while not queue.empty() and len(records) < _AT_ONCE:
                    records.append((0, payload_of(queue.get_nowait())))
                if queue.take_overflow():
                    log.warning("messages arrived faster than they were processed: components refresh")
                    follower.continuity.interrupted()
                async with aclosing(follower.deliver(records)) as batches:
                    async for batch in batches:
                        yield batch
                follower.continuity.require_tables()

    def acknowledge(self, position: Position) -> None:
        """The broker keeps nothing for this reader."""
        self._acknowledged = max(self._acknowledged, position)

    def retained_for(self, position: Position) -> int:
        return 0

    def status(self) -> SourceStatus:
        follower, failure = self._follower, self._failure
        connected = failure is None
        return SourceStatus(
            connected=connected,
            received=Position(0) if follower is None else follower.received,
            acknowledged=self._acknowledged,
            retained_bytes=None,
            wal_status=None,
            detail=failure or (follower.trouble if follower else None),
            server=None if follower is None else follower.continuity.sent,
            silent_s=follower.silent_s if connected and follower is not None else None,
            unit=self._unit,
        )

    async def close(self) -> None:
        """The stream's connection ends with the stream."""

    def _note_failure(self, error: Exception) -> None:
        refusal = self._connection.refusal(error)
        if isinstance(error, SubscriptionRefused):
            refusal = f"{error}: allow it to user {self._connection.user!r}"
        if refusal is not None and not self._connected_once:
            raise ConfigError(refusal) from error
        reason = refusal or f"{self._connection.address.hosts[0]}: {error or type(error).__name__}"
        if self._failure in (None, "connecting"):
            log.warning("source can't be read, retrying", source=self._connection.address.shown, reason=reason)
        self._failure = reason


def _code(value: Any) -> int:
    """Returns a reason code as a number."""
    code = getattr(value, "rc", value)
    return int(getattr(code, "value", code))
