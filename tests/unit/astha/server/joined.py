"""A daemon's server and its listener, joined by a real socket, in one process and on one loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from astha.listener import process
from astha.redaction import Redactor
from astha.server import Server
from astha.server.status import DaemonIdentity
from astha.settings import ServerSettings
from tests.unit.astha.server.daemons import HOLDER, Stage

TOKEN = "a-token-of-some-length"
READ_TOKEN = "a-token-that-only-reads"
PASSWORD = "open sesame"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
READER = {"Authorization": f"Bearer {READ_TOKEN}"}


class Joined:
    def __init__(self, server: Server, port: int, session: aiohttp.ClientSession) -> None:
        self.server, self.port, self.session = server, port, session
        self.get, self.post = session.get, session.post


def server_of(stage: Stage, **settings: object) -> Server:
    identity = DaemonIdentity(HOLDER, "postgresql://me:***@h/d", 20.0)
    redact = Redactor([PASSWORD, TOKEN])
    validated = ServerSettings.model_validate({"port": 0, **settings})
    return Server(stage.daemon, stage.store, "astha", validated, identity, redact, stage.clock)


@asynccontextmanager
async def joined(stage: Stage, **settings: object) -> AsyncIterator[Joined]:
    server = server_of(stage, **settings)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    ours, theirs = socket.socketpair()
    await server.join(ours)
    running = asyncio.create_task(process.run(theirs, [listening]))
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Joined(server, port, session)
    finally:
        server.part()
        async with asyncio.timeout(30):
            await running
