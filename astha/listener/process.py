"""The listener's process, from the first frame to the end of the link."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from astha.listener.accepting import accepting
from astha.listener.app import Listener
from astha.listener.link import Link, ToListener, listener_decoder
from astha.listener.log_forwarding import LogForwarder, use_standard_logging
from astha.listener.options import Options
from astha.tasks import cancel_and_wait

_NICENESS = 10
"""If cores are scarce, deliveries have priority."""

_PARENT_CHECK_S = 1.0
_SHUTDOWN_TIMEOUT_S = 1.0
_LINGER_S = 1.0


def main(link_descriptor: int, *listening_descriptors: int) -> None:
    """Runs until the daemon's end of the link is closed. Ignores signals: the daemon handles them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICENESS)
    listening = [socket.socket(fileno=descriptor) for descriptor in listening_descriptors]
    use_standard_logging()
    gc.freeze()  # imported modules stay for the life of the process
    asyncio.run(run(socket.socket(fileno=link_descriptor), listening, os.getppid()))


async def run(sock: socket.socket, listening: Sequence[socket.socket], parent: int | None = None) -> None:
    """Serves the connections to `listening` until the link ends."""
    over = asyncio.Event()
    options: asyncio.Future[Options] = asyncio.get_running_loop().create_future()
    listener: Listener | None = None

    def received(message: ToListener) -> None:
        if isinstance(message, Options):
            options.set_result(message)
        elif listener is not None:
            listener.received(message)

    link = await Link.open(sock, listener_decoder, received, over.set)
    handler = LogForwarder(link.send)
    logger = logging.getLogger() if parent is not None else logging.getLogger("astha.listener")
    logger.addHandler(handler)
    ended = asyncio.create_task(over.wait())
    try:
        either: tuple[asyncio.Future[Any], ...] = (ended, options)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not options.done():
            return
        listener = Listener(options.result(), link.send)
        await _serve(listener, options.result(), listening, ended, parent)
    finally:
        logger.removeHandler(handler)
        ended.cancel()
        link.close()
        for each in listening:
            each.close()


async def _serve(
    listener: Listener,
    options: Options,
    listening: Sequence[socket.socket],
    ended: asyncio.Task[bool],
    parent: int | None,
) -> None:
    serving = accepting(
        listener.app(),
        listening,
        options,
        shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S,
        lingering_time=_LINGER_S,
        auto_decompress=False,
    )
    async with serving as (listener.connections, accepts):
        own = [
            asyncio.create_task(listener.beat(), name="beat"),
            asyncio.create_task(listener.sample(), name="sample"),
            asyncio.create_task(_until_orphaned(parent), name="parent"),
        ]
        try:
            done, _ = await asyncio.wait({ended, *accepts, *own}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ended}:
                task.result()
        finally:
            listener.stop()
            await cancel_and_wait(*own)


async def _until_orphaned(parent: int | None) -> None:
    """Returns when the daemon is gone, even if a process that it forked still holds its end of the link."""
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110  (there is no event for it)
        await asyncio.sleep(_PARENT_CHECK_S)
