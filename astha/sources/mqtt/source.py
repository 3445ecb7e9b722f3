"""The transaction stream on an MQTT topic as a `Source`. It is live only: what is missing shows in the records."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from aiomqtt import Message

from astha.backoff import Backoff
from astha.brokers.errors import BrokerError
from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.sources.contract import Batch, PositionUnit, SourceStatus
from astha.sources.follower import Follower, StreamPayload, follower_status
from astha.sources.mqtt.message_queue import MessageQueue, payload_of, trace_of
from astha.sources.mqtt.stream import MqttStream
from astha.tasks import raise_if_cancelled
from registry.contract import MetadataStore
from registry.position import Position

log = structlog.get_logger(__name__)

_RECONNECT = Backoff(initial_s=0.1, max_s=5.0)
_AT_ONCE = 256
"""Messages that are taken together, if they have arrived."""


class MqttSource:
    """Subscribes to PREFIX/transactions at QoS 1, with a clean start."""

    def __init__(
        self,
        stream: MqttStream,
        store: MetadataStore,
        group: str,
        clock: LoopClock,
        unit: PositionUnit = "bytes",
    ) -> None:
        self._stream = stream
        self._store = store
        self._group = group
        self._clock = clock
        self._unit: PositionUnit = unit
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
                except BrokerError as error:
                    failures += 1
                    self._note_failure(error)
                raise_if_cancelled()
                follower.continuity.interrupted()
                await self._clock.sleep(_RECONNECT.wait_s(failures, self._clock))
        finally:
            self._failure = "not streaming"

    async def _read(self, follower: Follower) -> AsyncGenerator[Batch, None]:
        """Yields batches of one connection. Raises BrokerError when it is lost."""
        settings = self._stream.settings
        queue = MessageQueue(settings.max_queued, settings.max_queued_bytes)
        identifier = f"astha-{self._group}-{secrets.token_hex(4)}"
        async with self._stream.subscribed(identifier, queue) as client:
            raise_if_cancelled()
            if self._failure != "connecting":
                log.info("source connected again", source=self._stream.address.shown)
            self._connected_once, self._failure = True, None
            async for message in client.messages:
                records = [_record(message)]
                while not queue.empty() and len(records) < _AT_ONCE:
                    records.append(_record(queue.get_nowait()))
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
        return follower_status(self._follower, self._failure, self._acknowledged, self._unit)

    async def close(self) -> None:
        """The stream's connection ends with the stream."""

    def _note_failure(self, error: BrokerError) -> None:
        if error.lasting and not self._connected_once:
            raise ConfigError(str(error)) from error
        if self._failure != str(error):
            log.warning("source can't be read, retrying", source=self._stream.address.shown, reason=str(error))
        self._failure = str(error)


def _record(message: Message) -> StreamPayload:
    return 0, payload_of(message), trace_of(message)
