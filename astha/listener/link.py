"""The socket between daemon and listener, and what goes over it: msgpack frames with a length before each.

Both ends only ever append to the socket's buffer. The sender of events looks at `waiting_bytes` first; everything else
is an answer to a question, and questions are paced.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from astha.listener.options import Options

_HEADER_BYTES = 4
_LONGEST_FRAME_BYTES = 256 * 1024 * 1024
_SOCKET_BUFFER_BYTES = 1024 * 1024


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    number: int
    status: int  # HTTP's
    body: bytes
    content_type: str = "application/json"
    took_s: float = 0.0  # of the daemon's loop


class Routes(msgspec.Struct, frozen=True):
    """The body of the answer to `routes`: what can be watched."""

    leads: bool
    leader: str | None
    components: dict[str, list[str]]  # with their tables
    known: list[str]  # tables of the registry that are published


class Part(msgspec.Struct, frozen=True):
    """Consecutive events of one table, one line of JSON each."""

    table: str
    events: int
    lines: bytes


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """Whole transactions. `missed` counts, by table, events before them that the daemon had no room or time for."""

    parts: list[Part]
    missed: dict[str, int] = {}


class Figures(msgspec.Struct, frozen=True):
    """What the listener counts, for the daemon's metrics."""

    connections: int = 0
    watchers: int = 0
    refused: int = 0
    missed: int = 0


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    number: int
    what: str  # readiness, status, routes, text, openmetrics, refresh, pause, resume
    component: str | None = None
    peer: str | None = None
    figures: Figures = Figures()


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """From now on, events of these tables are wanted, and no others."""

    tables: frozenset[str]


class Said(msgspec.Struct, frozen=True, tag="log"):
    """A line for the daemon's log."""

    level: int
    text: str


ToListener = Options | Reply | Batch
ToDaemon = Ask | Watch | Said
Received = TypeVar("Received")

_encoder = msgspec.msgpack.Encoder()


class Link(asyncio.Protocol, Generic[Received]):
    """One end. `received` is called for each frame, `lost` once, when the other end is gone."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Received],
        received: Callable[[Received], None],
        lost: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        decoder: msgspec.msgpack.Decoder[Received],
        received: Callable[[Received], None],
        lost: Callable[[], None],
    ) -> Link[Received]:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(decoder, received, lost), sock=sock)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (a stream socket's)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while (end := self._frame_end(start)) is not None:
            frame = self._decoder.decode(memoryview(self._buffer)[start + _HEADER_BYTES : end])
            start = end
            self._received(frame)
        if start:
            del self._buffer[:start]

    def _frame_end(self, start: int) -> int | None:
        if len(self._buffer) - start < _HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[start : start + _HEADER_BYTES])
        end = start + _HEADER_BYTES + length
        if length > _LONGEST_FRAME_BYTES:
            self.close()
            raise ValueError(f"a frame of {length} bytes between daemon and listener")
        return end if len(self._buffer) >= end else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    @property
    def waiting_bytes(self) -> int:
        """What the other end has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct) -> None:
        """Never waits. What is sent to an end that is gone is lost."""
        if self._transport is not None:
            body = _encoder.encode(message)
            self._transport.write(len(body).to_bytes(_HEADER_BYTES) + body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


listener_decoder: msgspec.msgpack.Decoder[ToListener] = msgspec.msgpack.Decoder(ToListener)
daemon_decoder: msgspec.msgpack.Decoder[ToDaemon] = msgspec.msgpack.Decoder(ToDaemon)
