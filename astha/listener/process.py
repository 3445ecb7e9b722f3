"""The listener as a process: from the first frame to the end of the link."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from astha.listener.app import Listener
from astha.listener.connections import Connections, allowed_connections
from astha.listener.link import Link, Said, ToListener, listener_decoder
from astha.listener.options import Options, tls_context

_NICENESS = 10
"""Where cores are scarce, deliveries go first."""

_CALLERS_MISTAKES = (HttpProcessingError, web.RequestPayloadError, UnicodeEncodeError)
"""As aiohttp raises them of itself: it quotes an Expect that is no text. What our routes raise never gets that far."""

_NO_TARGET = URL("/")
_PARENT_LOOK_S = 1.0
_STOP_WITHIN_S = 1.0
_LINGER_S = 1.0
_LOG_EVERY_S = 10.0
_LOG_LINES = 20
_LOG_KIND_LENGTH = 80


def main(link_descriptor: int, *listening_descriptors: int) -> None:
    """Until the other end of the link is closed, by whatever ends the daemon. Signals are the daemon's matter."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICENESS)
    listening = [socket.socket(fileno=descriptor) for descriptor in listening_descriptors]
    gc.freeze()  # what was imported stays
    asyncio.run(run(socket.socket(fileno=link_descriptor), listening, os.getppid()))


async def run(sock: socket.socket, listening: Sequence[socket.socket], parent: int | None = None) -> None:
    """Serves what connects to `listening` until the link ends."""
    over = asyncio.Event()
    options: asyncio.Future[Options] = asyncio.get_running_loop().create_future()
    listener: Listener | None = None

    def received(message: ToListener) -> None:
        if isinstance(message, Options):
            options.set_result(message)
        elif listener is not None:
            listener.received(message)

    link = await Link.open(sock, listener_decoder, received, over.set)
    handler = RelayingHandler(link.send)
    logger = logging.getLogger() if parent is not None else logging.getLogger("astha.listener")
    logger.addHandler(handler)
    ended = asyncio.create_task(over.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {ended, options}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
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
    runner = web.AppRunner(
        listener.app(),
        access_log=None,
        shutdown_timeout=_STOP_WITHIN_S,
        keepalive_timeout=options.keepalive_timeout_s,
        lingering_time=_LINGER_S,
        auto_decompress=False,
        logger=_http_log(),
    )
    await runner.setup()
    assert runner.server is not None  # noqa: S101  (set up just now)
    runner.server.request_factory = with_target(runner.server.request_factory)
    listener.connections = Connections(
        runner.server,
        limit=allowed_connections(options.max_connections),
        header_timeout_s=options.header_timeout_s,
        keepalive_timeout_s=options.keepalive_timeout_s,
        tls=tls_context(options.certificate, options.key),
    )
    tasks = [
        *(asyncio.create_task(listener.connections.accept(each), name="accept") for each in listening),
        asyncio.create_task(listener.connections.sweep(), name="sweep"),
        asyncio.create_task(listener.beat(), name="beat"),
        asyncio.create_task(_orphaned(parent), name="parent"),
    ]
    try:
        done, _ = await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ended}:
            task.result()
    finally:
        listener.stop()
        await runner.cleanup()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _http_log() -> logging.Logger:
    """aiohttp's, without a traceback for each request that is no HTTP: those are the caller's mistakes."""
    logger = logging.getLogger("astha.listener.http")
    logger.addFilter(_of_ours)
    return logger


def _of_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], _CALLERS_MISTAKES))


def with_target(make_request: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """aiohttp's parser may find a request without a target, and its task then ends with an AttributeError. Such a
    request asks for a path that is not there.
    """

    def make(message: Any, *others: Any) -> web.BaseRequest:
        return make_request(message if message.url is not None else message._replace(url=_NO_TARGET), *others)

    return make


async def _orphaned(parent: int | None) -> None:
    """Returns when the daemon is gone, also if a process that it forked still holds its end of the link."""
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110  (no event tells it)
        await asyncio.sleep(_PARENT_LOOK_S)


class RelayingHandler(logging.Handler):
    """Log lines go to the daemon, which redacts and formats them.

    In ten seconds one line of each kind, with a count of those kept back, and no more than twenty in all.
    """

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send
        self._began = float("-inf")
        self._kept_back: dict[str, int] = {}  # by kind, since it was last sent
        self._sent: set[str] = set()  # in these ten seconds

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._began >= _LOG_EVERY_S:
            self._began = now
            self._sent.clear()
        kind = f"{record.name} {str(record.msg).partition(chr(10))[0][:_LOG_KIND_LENGTH]}"
        if kind in self._sent or len(self._sent) >= _LOG_LINES:
            if kind in self._sent:
                self._kept_back[kind] = self._kept_back.get(kind, 0) + 1
            return
        self._sent.add(kind)
        more = self._kept_back.pop(kind, 0)
        text = self.format(record) + (f" ({more} more like it before)" if more else "")
        self._send(Said(record.levelno, text.encode(errors="backslashreplace").decode()))
