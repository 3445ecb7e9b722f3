"""A proxy before PostgreSQL that makes transactions fail as CockroachDB's do: 40001, 40003, and lost answers.

It reads the client's messages (https://www.postgresql.org/docs/current/protocol-message-formats.html). A *request* is
what the client sends before it waits: a simple query, or messages up to Sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Literal, TypeAlias

from tests.doubles.proxy import Streams, TcpProxy

Fault: TypeAlias = Literal["conflict", "lose request", "lose response", "race", "ambiguous"]
"""
- conflict: 40001 in place of the request
- lose request: the connection is cut instead of sending the request
- lose response: the request is executed, and the connection is cut instead of its response
- race: the request is sent and both connections are cut at once, so it may be executed or not
- ambiguous: the request is executed, and answered with 40003
"""
Plan: TypeAlias = Callable[[str, bool], Fault | None]
"""What to do to a request, given its text and whether it commits."""

_READY = b"Z\x00\x00\x00\x05"
_HEADER = struct.Struct("!cI")


def random_faults(seed: str, *, commits: float = 0.25, statements: float = 0.04) -> Plan:
    """Faults of about every fourth COMMIT of a write, and now and then of a statement before it."""
    chance = Random(seed)

    def plan(_: str, commits_now: bool) -> Fault | None:
        if commits_now:
            if chance.random() >= commits:
                return None
            return chance.choice(("conflict", "lose request", "lose response", "race", "ambiguous"))
        if chance.random() >= statements:
            return None
        return chance.choice(("conflict", "conflict", "lose request"))

    return plan


class FailingPostgres(TcpProxy):
    """Fails requests of write transactions: of those that begin with a read of the row that a load updates."""

    def __init__(self, host: str, port: int, plan: Plan) -> None:
        super().__init__(host, port)
        self._plan = plan
        self.faults: Counter[Fault] = Counter()

    async def _exchange(self, client: Streams, server: Streams) -> None:
        session = _Session(client[1], server[1])
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(self._requests(session, client[0]), session.responses(server[0]))
        for _, writer in (client, server):
            writer.transport.abort()

    async def _requests(self, session: _Session, reader: asyncio.StreamReader) -> None:
        async for request in _requests(reader):
            fault = None
            text = request.decode(errors="replace")
            session.begin(text)
            commits = "COMMIT" in text
            if session.writes and not text[5:].startswith("BEGIN"):
                fault = self._plan(text, commits)
            if commits or "ROLLBACK" in text:
                session.writes = False
            if fault is not None:
                self.faults[fault] += 1
            await session.pass_on(request, fault)


class _Session:
    """One client's connection and the one to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self._fault: Fault | None = None
        self.writes = False

    def begin(self, text: str) -> None:
        if "BEGIN" in text:
            self.writes = "SELECT 1 FROM registry_locks" in text

    async def pass_on(self, request: bytes, fault: Fault | None) -> None:
        if fault == "conflict":
            self._client.write(_error("40001", "restart transaction (injected)") + _READY + b"E")
            await self._client.drain()
        elif fault == "lose request":
            self.cut()
        else:
            self._fault = fault
            self._server.write(request)
            await self._server.drain()
            if fault == "race":
                self.cut()

    async def responses(self, reader: asyncio.StreamReader) -> None:
        held = b""
        while data := await reader.read(65_536):
            if self._fault is None:
                self._client.write(data)
                await self._client.drain()
                continue
            held += data
            if held[-6:-1] != _READY:
                continue
            if self._fault != "ambiguous":
                self.cut()
                return
            self._client.write(_error("40003", "result is ambiguous (injected)") + _READY + b"I")
            held, self._fault = b"", None
        self.cut()

    def cut(self) -> None:
        """Also ends the session on the server, which may still execute the request."""
        self._client.transport.abort()
        self._server.close()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    started = False
    while not started:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!II", head)
        started = code >> 16 == 3  # requests for encryption, which our server refuses, come before
        yield head + await reader.readexactly(length - 8)
    request = b""
    while True:
        head = await reader.readexactly(_HEADER.size)
        kind, length = _HEADER.unpack(head)
        request += head + await reader.readexactly(length - 4)
        if kind not in b"PBEDCdf":  # parts of a request that ends with Sync
            yield request
            request = b""


def _error(state: str, message: str) -> bytes:
    fields = f"SERROR\0VERROR\0C{state}\0M{message}\0\0".encode()
    return _HEADER.pack(b"E", len(fields) + 4) + fields
