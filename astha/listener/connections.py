"""Accepts a limited number of connections, and closes those that do not send a request in time.

A connection is idle (waiting for a handshake, headers or the next request) or busy. At the limit, the connection that
has been idle longest is closed for a new one; if none has been idle for a second, the new one is refused. So idle
connections do not block a health probe for long, and descriptors never run out.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

log = structlog.get_logger(__name__)

_RESERVED_DESCRIPTORS = 32
"""For the interpreter, the link, the event loop and the listening socket itself."""

_SWEEP_S = 0.5
_EVICT_AFTER_S = 1.0
_ACCEPT_RETRY_S = 1.0
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 51\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error": "as many connections as may be are open"}'
)


class _Connection:
    def __init__(self, sock: socket.socket, now: float) -> None:
        self.sock = sock
        self.transport: asyncio.Transport | None = None
        self.since = now  # when it became idle or busy
        self.busy = False
        self.streams = False
        self.requests = 0

    @property
    def closed(self) -> bool:
        return self.sock.fileno() < 0

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        else:  # within the TLS handshake, which notices the shutdown
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class Connections:
    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        limit: int,
        header_timeout_s: float,
        keepalive_timeout_s: float,
        busy_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._protocol = protocol
        self._limit = limit
        self._header_timeout_s = header_timeout_s
        self._keepalive_timeout_s = keepalive_timeout_s
        self._busy_timeout_s = busy_timeout_s
        self._tls = tls
        self._open: dict[int, _Connection] = {}  # by descriptor
        self._opening: set[asyncio.Task[None]] = set()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    async def accept(self, listening: socket.socket) -> None:
        """Runs until cancelled."""
        listening.setblocking(False)
        while True:
            try:
                sock, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                log.warning("connection can't be accepted", error=error.strerror or str(error))
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._take(sock)

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if len(self._open) >= self._limit and not self._evict_idle():
            self.refused += 1
            log.warning("connection refused: server.max_connections are open", limit=self._limit)
            if self._tls is None:
                with suppress(OSError):
                    sock.send(_REFUSAL)
            sock.close()
            return
        connection = _Connection(sock, time.monotonic())
        self._open[sock.fileno()] = connection
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _serve(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        timeout = self._header_timeout_s if self._tls is not None else None
        try:
            transport, _ = await loop.connect_accepted_socket(
                self._protocol, connection.sock, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError, TimeoutError):  # a failed handshake: not a TLS client, or plain HTTP
            connection.sock.close()
            return
        connection.transport = transport

    def _evict_idle(self) -> bool:
        self._remove_closed()
        if len(self._open) < self._limit:
            return True
        idle = [connection for connection in self._open.values() if not connection.busy]
        oldest = min(idle, key=lambda connection: connection.since, default=None)
        if oldest is None or time.monotonic() - oldest.since < _EVICT_AFTER_S:
            return False
        log.warning("idle connection closed for a new one: server.max_connections are open", limit=self._limit)
        oldest.abort()  # its descriptor is closed within this turn of the loop: until then, one beyond the limit
        self.refused += 1
        return True

    def _remove_closed(self) -> None:
        for descriptor in [number for number, connection in self._open.items() if connection.closed]:
            del self._open[descriptor]

    async def sweep(self) -> None:
        """Runs until cancelled: closes connections that have timed out, and all of them in the end."""
        try:
            while True:
                await asyncio.sleep(_SWEEP_S)
                self._remove_closed()
                now = time.monotonic()
                for connection in self._open.values():
                    if now - connection.since > self._timeout_s(connection):
                        connection.abort()
        finally:
            for connection in self._open.values():
                connection.abort()
            for task in self._opening:
                task.cancel()

    def _timeout_s(self, connection: _Connection) -> float:
        if connection.streams:
            return float("inf")
        if connection.busy:
            return self._busy_timeout_s
        return self._keepalive_timeout_s if connection.requests else self._header_timeout_s

    @contextmanager
    def request(self, transport: asyncio.BaseTransport | None, *, streams: bool = False) -> Iterator[None]:
        """Marks the connection as busy while a request is handled. A stream has no time limit."""
        sock = None if transport is None else transport.get_extra_info("socket")
        connection = None if sock is None else self._open.get(sock.fileno())
        if connection is None:
            yield
            return
        connection.busy, connection.streams, connection.since = True, streams, time.monotonic()
        try:
            yield
        finally:
            connection.busy, connection.streams, connection.since = False, False, time.monotonic()
            connection.requests += 1


def allowed_connections(wanted: int) -> int:
    """Raises the soft limit of descriptors as far as needed and allowed, and returns the connections that fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = max(1, soft - _RESERVED_DESCRIPTORS)
    log.warning("server.max_connections exceeds the limit of open files", wanted=wanted, allowed=allowed)
    return allowed
