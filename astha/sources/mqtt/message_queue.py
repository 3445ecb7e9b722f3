"""Messages that have arrived and wait to be taken: bounded in number and bytes."""

from __future__ import annotations

import asyncio

from aiomqtt import Message

from astha.events.traceparent import HEADER, TraceParent, read_traceparent


class MessageQueue(asyncio.Queue[Message]):
    """A message that does not fit makes everything be dropped: with one message missing, the others are of no use, and
    the stream continues with the next heartbeat.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        super().__init__()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self.overflowed = False  # until `take_overflow`

    def put_nowait(self, item: Message) -> None:
        if self.qsize() >= self._max_messages or self._bytes + _size(item) > self._max_bytes:
            while not self.empty():
                self.get_nowait()
            self.overflowed = True
            return
        super().put_nowait(item)

    def take_overflow(self) -> bool:
        """Returns whether messages were dropped since the last call."""
        overflowed, self.overflowed = self.overflowed, False
        return overflowed

    def _put(self, item: Message) -> None:
        self._bytes += _size(item)
        super()._put(item)

    def _get(self) -> Message:
        item = super()._get()
        self._bytes -= _size(item)
        return item


def payload_of(message: Message) -> bytes:
    payload = message.payload
    return bytes(payload) if isinstance(payload, (bytes, bytearray)) else b""


def trace_of(message: Message) -> TraceParent | None:
    for name, value in getattr(message.properties, "UserProperty", ()):
        if name == HEADER:
            return read_traceparent(value.encode())
    return None


def _size(message: Message) -> int:
    return len(message.payload) if isinstance(message.payload, (bytes, bytearray)) else 0
