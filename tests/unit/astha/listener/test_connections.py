"""The real accept loop over loopback; time limits are cut short."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from astha.listener import connections as module
from astha.listener.connections import Connections, allowed_connections
from astha.listener.options import tls_context
from tests.tls import CERTIFICATE, KEY
from tests.waiting import eventually


class Echo(asyncio.Protocol):
    """Answers each line; the test decides what a request is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Door:
    def __init__(self, connections: Connections, port: int) -> None:
        self.connections, self.port = connections, port
        self.clients: list[socket.socket] = []

    def knock(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        client.setblocking(False)
        self.clients.append(client)
        return client

    def served(self) -> list[asyncio.Transport]:
        """Of connections that are open, in the order in which they came."""
        found = [each for each in self.connections._open.values() if not each.closed]
        return [each.transport for each in found if each.transport is not None]


@contextlib.asynccontextmanager
async def opened(**changes: object) -> AsyncIterator[Door]:
    chosen = {"limit": 3, "header_timeout_s": 600.0, "keepalive_timeout_s": 600.0, "busy_timeout_s": 600.0} | changes
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    connections = Connections(Echo, **chosen)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(connections.accept(listening)), asyncio.create_task(connections.sweep())]
    door = Door(connections, listening.getsockname()[1])
    try:
        yield door
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: not connections._opening, "nothing is left opening")
        listening.close()
        for client in door.clients:
            client.close()


async def heard(client: socket.socket) -> bytes:
    async with asyncio.timeout(30):
        try:
            return await asyncio.get_running_loop().sock_recv(client, 1000)
        except ConnectionError:
            return b""


@pytest.fixture
def _never_evict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVICT_AFTER_S", 600.0)


@pytest.mark.usefixtures("_never_evict")
async def test_connections_beyond_the_limit_are_refused_with_a_reason() -> None:
    async with opened() as door:
        kept = [door.knock() for _ in range(3)]
        await eventually(lambda: len(door.connections) == 3, "three")
        assert (await heard(door.knock())).startswith(b"HTTP/1.1 503 ")
        assert door.connections.refused == 1
        kept[0].close()
        await eventually(lambda: len(door.connections) == 2, "room")
        await asyncio.get_running_loop().sock_sendall(new := door.knock(), b"hello")
        assert await heard(new) == b"hello"


async def test_the_longest_idle_connection_is_evicted_and_busy_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVICT_AFTER_S", 0.0)
    async with opened(limit=2) as door:
        busy, idle = door.knock(), door.knock()
        await eventually(lambda: len(door.served()) == 2, "two")
        with door.connections.request(door.served()[0]):
            new = door.knock()
            assert await heard(idle) == b""
            await asyncio.get_running_loop().sock_sendall(new, b"hello")
            assert await heard(new) == b"hello"
            await asyncio.get_running_loop().sock_sendall(busy, b"still here")
            assert await heard(busy) == b"still here"


async def test_a_connection_without_a_request_times_out_and_a_stream_does_not() -> None:
    async with opened(header_timeout_s=0.01) as door:
        silent = door.knock()
        assert await heard(silent) == b""
        streams = door.knock()
        await eventually(lambda: bool(door.served()), "served")
        with door.connections.request(door.served()[0], streams=True):
            assert await heard(door.knock()) == b"", "another silent one, closed by a later look"
            await asyncio.get_running_loop().sock_sendall(streams, b"still here")
            assert await heard(streams) == b"still here"


async def test_between_requests_the_keepalive_timeout_applies() -> None:
    async with opened(keepalive_timeout_s=0.01) as door:
        client = door.knock()
        await eventually(lambda: bool(door.served()), "served")
        with door.connections.request(door.served()[0]):
            pass
        assert await heard(client) == b""


async def test_a_request_has_its_own_limit_and_a_stream_has_none() -> None:
    async with opened(busy_timeout_s=0.01) as door:
        streaming, client = door.knock(), door.knock()
        await eventually(lambda: len(door.served()) == 2, "served")
        with (
            door.connections.request(door.served()[0], streams=True),
            door.connections.request(door.served()[1]),
        ):
            assert await heard(client) == b""
            await asyncio.get_running_loop().sock_sendall(streaming, b"still here")
            assert await heard(streaming) == b"still here"


async def test_a_silent_handshake_times_out_and_counts_while_it_lasts() -> None:
    async with opened(header_timeout_s=0.2, tls=tls_context(str(CERTIFICATE), str(KEY))) as door:
        silent, plain = door.knock(), door.knock()
        await asyncio.get_running_loop().sock_sendall(plain, b"GET / HTTP/1.1\r\n\r\n")
        await heard(silent)
        await heard(plain)
        await eventually(lambda: len(door.connections) == 0, "both forgotten")


async def test_no_descriptors_left_is_logged_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ACCEPT_RETRY_S", 0.0)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter([OSError(24, "Too many open files")] * 3)

    async def failing(sock: socket.socket) -> tuple[socket.socket, object]:
        for failure in failures:
            raise failure
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    with capture_logs() as lines:
        async with opened() as door:
            await loop.sock_sendall(client := door.knock(), b"hello")
            assert await heard(client) == b"hello"
    event = {"event": "connection can't be accepted", "error": "Too many open files", "log_level": "warning"}
    assert lines == [event] * 3


class TestDescriptors:
    @pytest.fixture(autouse=True)
    def _limits(self) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_the_soft_limit_is_raised_as_far_as_needed(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert allowed_connections(512) == 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512 + 32

    def test_a_hard_limit_lowers_the_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
        monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
        with capture_logs() as lines:
            assert allowed_connections(512) == 68
        assert [line["allowed"] for line in lines] == [68]
