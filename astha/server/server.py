"""The life of the listener: the address, the process, the link to it, and a new one when it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import structlog

import astha
from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.errors import AddressTaken, ConfigError
from astha.listener.link import Ask, Link, Reply, Said, ToDaemon, daemon_decoder
from astha.redaction import Redactor
from astha.server.responder import Answers
from astha.server.event_stream import Tap
from astha.server.options import listener_options
from astha.server.status import Self
from astha.settings import ServerSettings
from registry.contract import MetadataStore

log = structlog.get_logger(__name__)

_BACKLOG = 1024
_LINK_BYTES = 4 * 1024 * 1024
"""That may wait for the listener to take them; beyond, events are counted as missed."""

_QUESTIONS = 64
"""That may be open at once; the listener asks far fewer."""

_STOP_WITHIN_S = 3.0
_ADDRESS_FREE_WITHIN_S = 1.0
_LOOK_S = 10.0
_SILENT_LOOKS = 3
_FIRST_BACKOFF_S = 0.2
_LONGEST_BACKOFF_S = 30.0
_STEADY_AFTER_S = 60.0

_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONUTF8")
"""What the listener gets of ours: no credentials."""


_Address: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]  # of getaddrinfo


class Server:
    """Serves one daemon from `start` to `stop`. Trouble of the listener is logged and never ends the daemon."""

    def __init__(
        self,
        daemon: Daemon,
        store: MetadataStore,
        lease_name: str,
        settings: ServerSettings,
        me: Self,
        redact: Redactor,
        clock: LoopClock,
    ) -> None:
        self._daemon = daemon
        self._settings = settings
        self._options = listener_options(settings)
        self._answers = Answers(daemon, store, lease_name, me, redact, clock)
        self._tap = Tap(self._send, self._has_room, self._options.buffer_events)
        self._link: Link[ToDaemon] | None = None
        self._listening: list[socket.socket] = []
        self._keeping: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._heard = False

    @property
    def watched(self) -> frozenset[str]:
        """Tables of which events are encoded."""
        return self._tap.tables

    async def start(self) -> str:
        """The URL that it listens on. Callers may connect from now on; the listener answers once it has started."""
        self._listening = await self._listen()
        host, port, *_ = self._listening[0].getsockname()
        url = self._settings.url_of(host, port)
        self._keeping = asyncio.create_task(self._keep(self._listening), name="listener")
        log.info("listening", url=url)
        return url

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        for sock in self._listening:
            sock.close()
        self._listening = []

    async def _listen(self) -> list[socket.socket]:
        """The listener of a daemon that was killed may need a moment to notice and to leave the address."""
        host, port = self._settings.host, self._settings.port
        where, give_up = f"{host}:{port}", time.monotonic() + _ADDRESS_FREE_WITHIN_S
        while True:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                return _bound_all(found)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ConfigError(
                        f"can't listen on {where}: {error.strerror}: correct server.host or server.port"
                    ) from error
                if time.monotonic() > give_up:
                    raise AddressTaken(f"somebody listens on {where} already: stop them or set server.port") from error
            await asyncio.sleep(0.05)

    # -- the process ------------------------------------------------------------------------------------

    async def _keep(self, listening: Sequence[socket.socket]) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started = time.monotonic()
            try:
                code = await self._run(listening)
            except Exception as error:  # whatever it is, deliveries go on
                log.error("the HTTP listener can't be started", error=repr(error), again_in_s=backoff_s)
            else:
                log.error("the HTTP listener ended", exit_code=code, again_in_s=backoff_s)
            if time.monotonic() - started > _STEADY_AFTER_S:
                backoff_s = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
            self._answers.listener.restarts += 1

    async def _run(self, listening: Sequence[socket.socket]) -> int:
        """One listener, from its start to its end."""
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
            await self._while_heard(lost)
        finally:
            self.part()
            code = 0 if process is None else await asyncio.shield(asyncio.create_task(_ended(process)))
        return code

    async def _while_heard(self, lost: asyncio.Event) -> None:
        """Returns when the listener is gone, or says nothing for several looks although it should every few seconds."""
        silent = 0
        while not lost.is_set() and silent < _SILENT_LOOKS:
            self._heard = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await lost.wait()
            silent = 0 if self._heard else silent + 1
        if not lost.is_set():
            log.error("the HTTP listener does not move: ending it", silent_s=silent * _LOOK_S)

    # -- the link ---------------------------------------------------------------------------------------

    async def join(self, sock: socket.socket) -> asyncio.Event:
        """Answers the listener at the other end of `sock`. The event is set when that is gone."""
        lost = asyncio.Event()
        self._link = await Link.open(sock, daemon_decoder, self._received, lost.set)
        self._link.send(self._options)
        self._daemon.taps.append(self._tap)
        return lost

    def part(self) -> None:
        """Ends the link, and with it the listener."""
        self._tap.tables = frozenset()
        if self._tap in self._daemon.taps:
            self._daemon.taps.remove(self._tap)
        for task in self._answering:
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
            case Ask():
                if len(self._answering) < _QUESTIONS:
                    task = asyncio.create_task(self._answer(message), name="answer to the listener")
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                else:
                    self._send(Reply(message.number, 503, b'{"error": "too many questions at once"}\n'))
            case Said(level, text):
                log.log(level, "HTTP listener", said=text)
            case _:
                self._tap.tables = message.tables

    async def _answer(self, ask: Ask) -> None:
        self._send(await self._answers.answer(ask))


def _bound_all(found: Sequence[_Address]) -> list[socket.socket]:
    """One socket for each address of the host, all on the port of the first."""
    first = _bound(*found[0])
    sockets = [first]
    for family, kind, protocol, name, address in found[1:]:
        with suppress(OSError):  # a machine without IPv6 has the name "localhost" for it all the same
            sockets.append(_bound(family, kind, protocol, name, (address[0], first.getsockname()[1], *address[2:])))
    return sockets


def _bound(family: int, kind: int, protocol: int, _: str, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _command(descriptors: Sequence[int]) -> list[str]:
    """An interpreter that finds this very package, whatever the working directory holds."""
    package = Path(astha.__file__).parent
    program = package / "listener" / "__main__.py"
    return [sys.executable, "-P", str(program), str(package.parent), *map(str, descriptors)]


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Its exit code, soon: the end of the link is told to it by closing ours."""
    try:
        async with asyncio.timeout(_STOP_WITHIN_S):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
