"""One connection to the broker: messages at QoS 1, several in flight, acknowledged or refused one by one.

A link ends with the first error. It never reconnects and never repeats a message: its user does, with another link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec
from aiomqtt import Client, MqttError, Will
from paho.mqtt.reasoncodes import ReasonCode

from astha.brokers.errors import BrokerError
from astha.brokers.mqtt import BrokerLimits, MqttConnection, abort, accepted, observe, send
from astha.subscribers import DeliveryError, LoopClock
from astha.tasks import first_of
from components.mqtt_sink.errors import BrokerUnusable, PublishRefused
from components.mqtt_sink.properties import PackedProperties
from components.mqtt_sink.settings import MqttSettings

_CLOSE_S = 1.0
_MAX_BYTES_IN_FLIGHT = 16 << 20
_TIME_SLICE_S = 0.002
"""After this time of sending, other tasks run: acknowledgements are read then."""

_PACKET_OVERHEAD = 16  # header, length, packet number, lengths of texts


class Publication(msgspec.Struct, frozen=True):
    """One message to send."""

    topic: str
    payload: bytes
    properties: PackedProperties
    retain: bool = False


class _InFlight(msgspec.Struct):
    batch: Batch
    topic: str
    size: int
    sent_at: float
    mark: Callable[[], None] | None
    acknowledged: bool = False


class Link:
    def __init__(self, client: Client, settings: MqttSettings, clock: LoopClock) -> None:
        self._client = client
        self._settings = settings
        self._connection: MqttConnection = settings.connection
        self._clock = clock
        self._limits: BrokerLimits = observe(client, self._on_acknowledged)
        self._most = settings.max_in_flight
        self._pending: dict[int, _InFlight] = {}  # by packet number, in the order of sending
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._slice_ends = 0.0
        self.error: BrokerUnusable | None = None

    @classmethod
    async def connect(cls, settings: MqttSettings, client_id: str, will: Will | None, clock: LoopClock) -> Link:
        """Raises BrokerUnusable. A cancelled call leaves no connection behind."""
        connection = settings.connection
        try:
            client = await connection.client(client_id, will)
            link = cls(client, settings, clock)
            await connection.connect(client)
        except BrokerError as error:
            raise BrokerUnusable.of(error) from None
        link._most = max(1, min(settings.max_in_flight, link._limits.receive_maximum))
        if not (link._limits.qos_1_available and link._limits.retain_available):
            abort(client)
            raise BrokerUnusable(f"MQTT broker {settings.address} does not support QoS 1 and retained messages", True)
        return link

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def payload_limit(self, topic: str, properties_bytes: int) -> int:
        """Returns the largest payload that the settings and the broker allow for a message."""
        limit = self._settings.max_payload_bytes
        if self._limits.maximum_packet_bytes is not None:
            rest = self._limits.maximum_packet_bytes - len(topic.encode()) - properties_bytes - _PACKET_OVERHEAD
            limit = min(limit, max(0, rest))
        return limit

    async def watch(self) -> BrokerUnusable:
        """Waits until the connection is lost, or the broker does not acknowledge. Returns the reason."""
        await first_of(self._until_disconnected(), self._until_overdue())
        return self.error or self.fail(self._unusable("the connection ended"))

    async def close(self) -> None:
        """Disconnects: the broker discards the last will. What is in flight may be lost."""
        if self.error is None:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await self._client.__aexit__(None, None, None)
            except (MqttError, OSError, TimeoutError):
                pass
        self.fail(self._unusable("the connection was closed"))

    def fail(self, error: BrokerUnusable) -> BrokerUnusable:
        """Ends the connection. Every waiting call raises the first error, which is returned."""
        self.error = self.error or error
        abort(self._client)
        batches = {id(entry.batch): entry.batch for entry in self._pending.values()}
        self._pending.clear()
        self._bytes = 0
        for batch in batches.values():
            batch.fail(self.error)
        self._wake()
        return self.error

    # -- for batches -------------------------------------------------------------------------------------

    async def room(self, size: int) -> None:
        """Waits until a message of that size may be sent."""
        now = self._clock.monotonic()
        if now >= self._slice_ends:
            await asyncio.sleep(0)
            self._slice_ends = self._clock.monotonic() + _TIME_SLICE_S
        while self.error is None and self._full(size):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            raise self.error.again()

    def send(self, batch: Batch, message: Publication, mark: Callable[[], None] | None) -> _InFlight:
        """Call it only after `room`, without waiting between the two."""
        try:
            number = send(self._client, message.topic, message.payload, message.properties, message.retain)
        except ConnectionError as error:
            raise self.fail(BrokerUnusable.of(self._connection.explain(error))) from error
        size = len(message.payload)
        entry = _InFlight(batch, message.topic, size, self._clock.monotonic(), mark)
        self._pending[number] = entry
        self._bytes += size
        return entry

    def _full(self, size: int) -> bool:
        if not self._pending:
            return False
        return len(self._pending) >= self._most or self._bytes + size > _MAX_BYTES_IN_FLIGHT

    def _on_acknowledged(self, number: int, reason: ReasonCode) -> None:
        entry = self._pending.pop(number, None)
        if entry is None:
            return
        self._bytes -= entry.size
        if accepted(reason):
            entry.acknowledged = True
            entry.batch.advance()
        else:
            described = self._connection.describe(reason)
            entry.batch.fail(PublishRefused(self._settings.address, entry.topic, entry.size, described))
        if self._waiters and len(self._pending) <= self._most * 3 // 4:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _until_disconnected(self) -> None:
        try:
            async for _ in self._client.messages:
                pass  # nothing is subscribed to
        except MqttError as error:
            lost = BrokerUnusable.of(self._connection.explain(error))
            if self._settings.client_id is not None:  # not every broker gives this reason
                known = f"does another client use the identifier {self._settings.client_id!r}?"
                lost = BrokerUnusable(f"{lost}; if it repeats, {known}", lost.lasting)
            self.fail(lost)

    async def _until_overdue(self) -> None:
        limit_s = self._settings.timeout_s
        while True:
            await self._clock.sleep(limit_s / 4)
            oldest = next(iter(self._pending.values()), None)
            if oldest is not None and self._clock.monotonic() - oldest.sent_at > limit_s:
                self.fail(self._unusable(f"it has not acknowledged a message for {limit_s:g} s"))
                return

    def _unusable(self, reason: str) -> BrokerUnusable:
        return BrokerUnusable(f"MQTT broker {self._settings.address}: {reason}")


class Batch:
    """Messages whose acknowledgements are awaited together. Marks are called in the order of sending: each means that
    its message, and all before it, are acknowledged.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._order: deque[_InFlight] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def publish(self, message: Publication, mark: Callable[[], None] | None = None) -> None:
        """Returns when the message is on its way. Raises the error of any earlier message."""
        await self.link.room(len(message.payload))
        self.send(message, mark)

    def send(self, message: Publication, mark: Callable[[], None] | None = None) -> None:
        """As `publish`, after `link.room` has returned."""
        if self._error is not None:
            raise self._error
        self._order.append(self.link.send(self, message, mark))

    async def acknowledged(self) -> None:
        """Waits for all acknowledgements. Raises PublishRefused or BrokerUnusable."""
        while self._order and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error

    async def settled(self) -> None:
        """Waits until nothing of it is in flight, whatever became of it."""
        with suppress(DeliveryError):
            await self.acknowledged()

    def advance(self) -> None:
        order = self._order
        while order and order[0].acknowledged:
            entry = order.popleft()
            if entry.mark is not None:
                entry.mark()
        if not order:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Marks that follow are not called: their messages are sent again."""
        self._error = self._error or error
        self._order.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
