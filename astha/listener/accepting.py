"""Serves an aiohttp application on sockets that listen already, within the limits of its options."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from astha.listener.aiohttp_workarounds import accept_requests_without_target, http_logger
from astha.listener.connections import Connections, allowed_connections
from astha.listener.options import Options, tls_context
from astha.tasks import cancel_and_wait


class Accepting(NamedTuple):
    connections: Connections
    tasks: list[asyncio.Task[None]]  # none of them ends by itself


@asynccontextmanager
async def accepting(
    app: web.Application,
    listening: Sequence[socket.socket],
    options: Options,
    *,
    shutdown_timeout_s: float,
    **further: Any,
) -> AsyncIterator[Accepting]:
    """Serves during the block. Then it accepts nothing more, gives the requests in flight `shutdown_timeout_s` to end,
    and closes every connection. `further` are arguments of aiohttp's runner.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=shutdown_timeout_s,
        keepalive_timeout=options.keepalive_timeout_s,
        logger=http_logger(),
        **further,
    )
    await runner.setup()
    assert runner.server is not None  # noqa: S101  (set up just now)
    accept_requests_without_target(runner.server)
    connections = Connections(
        runner.server,
        limit=allowed_connections(options.max_connections),
        header_timeout_s=options.header_timeout_s,
        keepalive_timeout_s=options.keepalive_timeout_s,
        busy_timeout_s=options.busy_timeout_s,
        tls=tls_context(options.certificate, options.key),
    )
    accepts = [asyncio.create_task(connections.accept(each), name="accept") for each in listening]
    sweep = asyncio.create_task(connections.sweep(), name="sweep")
    try:
        yield Accepting(connections, [*accepts, sweep])
    finally:
        await cancel_and_wait(*accepts)
        await runner.cleanup()
        await cancel_and_wait(sweep)  # last: its end aborts every connection
