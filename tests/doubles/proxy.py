"""TCP proxies that cut, refuse, silence or slow down connections; the one for PostgreSQL also counts round trips."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from types import TracebackType
from typing import Protocol, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

_STARTUP_LENGTH = struct.Struct("!I")
_HEADER = struct.Struct("!cI")
_SLOW_BYTES = 2_048


Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Observer(Protocol):
    def feed(self, data: bytes) -> None: ...


class TcpProxy:
    """``async with TcpProxy(host, port) as proxy: proxy.url(url)``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._refusing = False
        self._bytes_per_s: float | None = None
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._hearing.set()
        self.refuse()
        while self._serving:  # also connections that are being opened: a client may have left in the meantime
            self.cut()
            await asyncio.wait(self._serving, timeout=0.1)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def url(self, url: str) -> str:
        """Returns the same database's URL through the proxy."""
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def lead_to(self, host: str, port: int) -> None:
        """Redirects new connections to another server, as when a virtual address moves."""
        self._target = (host, port)

    # -- faults ------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def refuse(self) -> None:
        """Resets every connection and refuses new ones."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def go_deaf(self) -> None:
        """Keeps connections open but forwards nothing, in either direction."""
        self._hearing.clear()

    def listen(self) -> None:
        self._hearing.set()

    def throttle(self, bytes_per_s: float | None) -> None:
        """Forwards only so many bytes per second and direction of each connection; None ends that."""
        self._bytes_per_s = bytes_per_s

    # -- the pipes ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        await self._exchange((reader, writer), (far_reader, far_writer))
        self._writers -= both

    async def _exchange(self, client: Streams, server: Streams) -> None:
        """Passes on what both say, until they end."""
        pipes = {
            asyncio.create_task(self._pipe(client[0], server[1], self._observer())),
            asyncio.create_task(self._pipe(server[0], client[1], None)),
        }
        await asyncio.wait(pipes)

    def _observer(self) -> Observer | None:
        """Returns what is to see the bytes of one client."""
        return None

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Observer | None) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536 if self._bytes_per_s is None else _SLOW_BYTES):
                if self._bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self._bytes_per_s)
                await self._hearing.wait()
                if seen is not None:
                    seen.feed(data)
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class PostgresProxy(TcpProxy):
    """Knows just enough of the wire protocol to count round trips: a client waits for the server's answer after each
    simple query and after each Sync (https://www.postgresql.org/docs/current/protocol-flow.html).
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.messages: Counter[str] = Counter()

    @property
    def round_trips(self) -> int:
        """Returns the number of round trips since `reset`."""
        return self.messages["Query"] + self.messages["Sync"]

    @property
    def statements(self) -> int:
        """Returns the number of statements executed since `reset`."""
        return self.messages["Query"] + self.messages["Execute"]

    def reset(self) -> None:
        self.messages.clear()

    def _observer(self) -> Observer:
        return _Reading(self.messages)


class _Reading:
    """Counts the messages in a client's stream."""

    _NAMES = {b"Q": "Query", b"P": "Parse", b"B": "Bind", b"E": "Execute", b"S": "Sync", b"C": "Close"}  # noqa: RUF012

    def __init__(self, messages: Counter[str]) -> None:
        self._messages = messages
        self._buffer = b""
        self._started = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while True:
            if not self._started:
                if len(self._buffer) < 8:
                    return
                (length,) = _STARTUP_LENGTH.unpack_from(self._buffer)
                (code,) = struct.unpack_from("!I", self._buffer, 4)
                if len(self._buffer) < length:
                    return
                self._buffer = self._buffer[length:]
                # Requests for encryption (refused by our servers) and for cancellation come before, or instead.
                self._started = code >> 16 == 3
                continue
            if len(self._buffer) < _HEADER.size:
                return
            kind, length = _HEADER.unpack_from(self._buffer)
            if len(self._buffer) < length + 1:
                return
            self._messages[self._NAMES.get(kind, repr(kind))] += 1
            self._buffer = self._buffer[length + 1 :]
