"""The socket between daemon and listener, and its frames: msgpack, each with its length before it.

Both ends append to the socket's buffer without waiting. The sender of events checks `waiting_bytes` first; all other
frames are replies to queries, whose rate is bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from astha.listener.options import Options

_HEADER_BYTES = 4
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_SOCKET_BUFFER_BYTES = 1024 * 1024

STANDING_BY = "standing by"
"""The role of a daemon that does not lead and can reach the registry, in the reply to `readiness`."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    number: int
    status: int  # of HTTP
    body: bytes
    content_type: str = "application/json"
    took_s: float = 0.0  # time of the daemon's event loop


class Routes(msgspec.Struct, frozen=True):
    """The body of the reply to `routes`: the tables that can be watched."""

    idle: str | None  # why this daemon has no events; None if it leads
    components: dict[str, list[str]]  # with their tables
    known: list[str]  # tables of the registry that are published


class TableLines(msgspec.Struct, frozen=True):
    """Consecutive events of one table, one line of JSON each."""

    table: str
    events: int
    lines: bytes


class EventFrame(msgspec.Struct, frozen=True, tag="batch"):
    """Whole transactions. `missed` counts, by table, the events before them that the daemon had to leave out."""

    parts: list[TableLines]
    missed: dict[str, int] = {}


class ListenerCounts(msgspec.Struct, frozen=True):
    """Counts of the listener, for the daemon's metrics."""

    connections: int = 0
    watchers: int = 0
    refused: int = 0
    missed: int = 0
    dashboards: int = 0
    dropped_dashboards: int = 0


class Query(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    number: int
    kind: str  # readiness, status, routes, text, openmetrics, an action or a view
    component: str | None = None
    table: str | None = None
    arguments: dict[str, str] = {}
    peer: str | None = None
    client: str | None = None  # the User-Agent of who requests an action
    counts: ListenerCounts = ListenerCounts()


class WatchedTables(msgspec.Struct, frozen=True, tag="watch"):
    """The tables whose events are wanted from now on."""

    tables: frozenset[str]


class LogLine(msgspec.Struct, frozen=True, tag="log"):
    """A line for the daemon's log."""

    level: int
    text: str


ToListener = Options | Reply | EventFrame
ToDaemon = Query | WatchedTables | LogLine
Received = TypeVar("Received")

_encoder = msgspec.msgpack.Encoder()


class Link(asyncio.Protocol, Generic[Received]):
    """One end of the socket. Calls `received` for each frame, and `lost` once, when the other end is closed."""

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
        if length > _MAX_FRAME_BYTES:
            self.close()
            raise ValueError(f"a frame between daemon and listener has {length} bytes")
        return end if len(self._buffer) >= end else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the other end has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: msgspec.Struct) -> None:
        """Never waits. Frames sent after the other end is closed are lost."""
        if self._transport is not None:
            body = _encoder.encode(message)
            self._transport.write(len(body).to_bytes(_HEADER_BYTES) + body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


listener_decoder: msgspec.msgpack.Decoder[ToListener] = msgspec.msgpack.Decoder(ToListener)
daemon_decoder: msgspec.msgpack.Decoder[ToDaemon] = msgspec.msgpack.Decoder(ToDaemon)
