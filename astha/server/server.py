"""Runs the listener: binds the address, starts the process, serves its queries, and restarts it when it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

import astha
from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.listener.link import Link, LogLine, Query, Reply, ToDaemon, daemon_decoder
from astha.listener.opening import bind
from astha.redaction import Redactor
from astha.server.event_stream import EventStream
from astha.server.options import GROUP, listener_options
from astha.server.responder import Responder
from astha.server.status import DaemonIdentity
from astha.settings import ServerSettings
from astha.tasks import cancel_and_wait, to_completion
from registry.contract import MetadataStore

log = structlog.get_logger(__name__)

_LINK_BYTES = 4 * 1024 * 1024
"""Bytes that may wait for the listener; beyond this, events are counted as missed."""

_MAX_QUERIES = 64
"""Concurrent queries; the listener sends far fewer."""

_STOP_TIMEOUT_S = 3.0
_CHECK_S = 10.0
_MAX_SILENT_CHECKS = 3
_RESTART = Backoff(initial_s=0.2, max_s=30.0)
_STEADY_AFTER_S = 60.0

_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONUTF8")
"""Environment variables for the listener: none with credentials."""


class Server:
    """Serves one daemon from `start` to `stop`. A failure of the listener is logged and never ends the daemon."""

    def __init__(
        self,
        daemon: Daemon,
        store: MetadataStore,
        group: str,
        settings: ServerSettings,
        identity: DaemonIdentity,
        redact: Redactor,
        clock: LoopClock,
    ) -> None:
        self._daemon = daemon
        self._clock = clock
        self._settings = settings
        self._options = listener_options(settings)
        self._responder = Responder(daemon, store, group, identity, redact, clock)
        self._event_stream = EventStream(self._send, self._has_room, self._options.buffer_events)
        self._link: Link[ToDaemon] | None = None
        self._listening: list[socket.socket] = []
        self._supervision: asyncio.Task[None] | None = None
        self._replying: set[asyncio.Task[None]] = set()
        self._heard = False

    @property
    def watched(self) -> frozenset[str]:
        """Tables whose events are encoded."""
        return self._event_stream.tables

    async def start(self) -> str:
        """Returns the URL. Clients may connect from now on, and are served once the listener has started."""
        self._listening = await bind(self._settings, GROUP)
        host, port, *_ = self._listening[0].getsockname()
        url = self._settings.url_of(host, port)
        self._supervision = asyncio.create_task(self._supervise(self._listening), name="listener")
        log.info("listening", url=url)
        return url

    async def stop(self) -> None:
        if self._supervision is not None:
            await cancel_and_wait(self._supervision)
            self._supervision = None
        for sock in self._listening:
            sock.close()
        self._listening = []
        await self._responder.close()

    # -- the process ------------------------------------------------------------------------------------

    async def _supervise(self, listening: Sequence[socket.socket]) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            try:
                code = await self._run(listening)
            except Exception as error:  # deliveries continue in any case
                log.error("HTTP listener can't be started", error=repr(error))
            else:
                log.error("HTTP listener ended", exit_code=code)
            failures = 1 if time.monotonic() - started > _STEADY_AFTER_S else failures + 1
            await self._clock.sleep(_RESTART.wait_s(failures, self._clock))
            self._responder.listener.restarts += 1

    async def _run(self, listening: Sequence[socket.socket]) -> int:
        """Runs one listener and returns its exit code."""
        ours, theirs = socket.socketpair()
        descriptors = [sock.fileno() for sock in (theirs, *listening)]
        process = None
        try:
            with theirs:
                lost = await self.join(ours)
                process = await asyncio.create_subprocess_exec(
                    *_command(descriptors),
                    pass_fds=descriptors,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                )
            await self._until_silent(lost)
        finally:
            self.part()
            code = 0 if process is None else await to_completion(_ended(process))
        return code

    async def _until_silent(self, lost: asyncio.Event) -> None:
        """Returns when the listener is gone, or has been silent for several checks: it sends every few seconds."""
        silent = 0
        while not lost.is_set() and silent < _MAX_SILENT_CHECKS:
            self._heard = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await lost.wait()
            silent = 0 if self._heard else silent + 1
        if not lost.is_set():
            log.error("HTTP listener does not respond: terminating it", silent_s=silent * _CHECK_S)

    # -- the link ---------------------------------------------------------------------------------------

    async def join(self, sock: socket.socket) -> asyncio.Event:
        """Serves the listener at the other end of `sock`. The event is set when that end is closed."""
        lost = asyncio.Event()
        self._link = await Link.open(sock, daemon_decoder, self._received, lost.set)
        self._link.send(self._options)
        self._daemon.observers.append(self._event_stream)
        return lost

    def part(self) -> None:
        """Ends the link, and with it the listener."""
        self._event_stream.tables = frozenset()
        if self._event_stream in self._daemon.observers:
            self._daemon.observers.remove(self._event_stream)
        for task in self._replying:
            task.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _send(self, message: msgspec.Struct) -> None:
        if self._link is not None:
            self._link.send(message)

    def _has_room(self) -> bool:
        return self._link is not None and self._link.waiting_bytes < _LINK_BYTES

    def _received(self, message: ToDaemon) -> None:
        self._heard = True
        match message:
            case Query():
                if len(self._replying) < _MAX_QUERIES:
                    task = asyncio.create_task(self._reply(message), name="reply to the listener")
                    self._replying.add(task)
                    task.add_done_callback(self._replying.discard)
                else:
                    self._send(Reply(message.number, 503, b'{"error": "too many queries at once"}\n'))
            case LogLine(level, text):
                log.log(level, "HTTP listener", message=text)
            case _:
                self._event_stream.tables = message.tables

    async def _reply(self, query: Query) -> None:
        self._send(await self._responder.respond(query))


def _command(descriptors: Sequence[int]) -> list[str]:
    """Returns the command of an interpreter that imports this package, whatever the working directory contains."""
    package = Path(astha.__file__).parent
    program = package / "listener" / "__main__.py"
    return [sys.executable, "-P", str(program), str(package.parent), *map(str, descriptors)]


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Returns the exit code. The listener ends because the link is closed; otherwise it is killed."""
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
