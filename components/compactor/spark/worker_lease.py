"""The driver's end of the leash: who works on which task, and that nobody does any more.

A worker connects, shows the task's token and waits for ``go``. It holds the task until it says ``bye`` or its
connection ends, which is when its process does. An attempt that comes while another holds the task (Spark has lost
sight of an executor) waits until that one has been stopped.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog

from components.lib.spark.errors import SessionProblem
from components.lib.spark.settings import SparkSettings

log = structlog.get_logger(__name__)

_HELLO_S = 10.0
_MANY_DEATHS = 2
_ELSEWHERE = "192.0.2.1"  # for documentation: beyond every machine's own network


@dataclass(eq=False)
class Holder:
    host: str
    parent: str  # the process that Spark's executor forks its workers from
    pid: str
    writer: asyncio.StreamWriter

    @property
    def executor(self) -> tuple[str, str]:
        return self.host, self.parent

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(eq=False)
class Call:
    """One task, however many attempts Spark makes of it."""

    local: bool  # whether a dead process can't have sent anything that is still under way
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    attempts: int = 0
    closed: bool = False
    holder: Holder | None = None
    held_since: float | None = None  # when the present holder was let go
    dead: list[Holder] = field(default_factory=list)  # ended without a goodbye
    doubtful: bool = False  # something of it may still appear
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        if self.holder is not None and not self.holder.writer.is_closing():
            self.holder.writer.write(b"stop\n")

    async def end(self, limit_s: float) -> bool:
        """Nobody is let go any more, and who works is stopped. Whether nothing of it can appear any more."""
        self.closed = True
        self.stop()
        return await self.idle(limit_s) and not self.doubtful

    async def idle(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while self.holder is not None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True


class Leash:
    def __init__(self, take_over_s: float) -> None:
        self._take_over_s = take_over_s
        self._calls: dict[str, Call] = {}
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """The port that it has got."""
        try:
            self._server = await asyncio.start_server(self._visited, host, port)
        except OSError as error:
            raise SessionProblem(
                f"workers can't report to {host}:{port} ({error}): set host to an address of this machine, port to 0"
            ) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def issue(self, *, local: bool) -> Call:
        call = Call(local)
        self._calls[call.token] = call
        return call

    def withdraw(self, call: Call) -> None:
        call.closed = True
        self._calls.pop(call.token, None)

    async def close(self) -> None:
        """Who is still at work sees the connection end, and ends too."""
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None  # noqa: S101
        self._visits.add(visit)
        try:
            await self._visit(reader, writer)
        except (OSError, ValueError, asyncio.CancelledError):  # a line without an end is no worker's
            log.debug("a worker's connection ended")
        finally:
            self._visits.discard(visit)
            writer.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HELLO_S):
            words = (await reader.readline()).decode(errors="replace").split()
        call = self._calls.get(words[0]) if len(words) == 4 else None
        if call is None:
            return await _say(writer, "no nobody waits for this task any more")
        holder = Holder(words[1], words[2], words[3], writer)
        if call.holder is not None:
            log.warning("another attempt of a task that is still held", holder=str(call.holder), by=str(holder))
            call.stop()
            if not await call.idle(self._take_over_s):
                call.doubtful = True
        if (reason := _against(call, holder)) is not None:
            return await _say(writer, f"no {reason}")
        call.holder, call.held_since = holder, time.monotonic()
        call.attempts += 1
        try:
            await _say(writer, "go")
            await self._hold(call, holder, reader)
        except BaseException:
            call.doubtful = True  # what the connection does not tell, nobody knows
            raise
        finally:
            call.holder = call.held_since = None
            call.changed.set()
        return None

    async def _hold(self, call: Call, holder: Holder, reader: asyncio.StreamReader) -> None:
        try:
            goodbye = await reader.readline()
        except ConnectionResetError:
            goodbye = b""
        if goodbye != b"bye\n":
            call.dead.append(holder)
            call.doubtful = call.doubtful or not call.local


def _against(call: Call, holder: Holder) -> str | None:
    if call.closed:
        return "nobody waits for this task any more"
    if call.doubtful:
        return "something of an attempt before this one may still be written"
    if len(call.dead) >= _MANY_DEATHS or any(dead.executor == holder.executor for dead in call.dead):
        return f"{call.dead[-1]} died at this task"
    return None


async def _say(writer: asyncio.StreamWriter, words: str) -> None:
    writer.write(f"{words}\n".encode())
    await writer.drain()


def addresses(settings: SparkSettings) -> tuple[str, str]:
    """Where to listen, and what to tell the workers. SessionProblem if there is no way to the master."""
    if settings.host is not None:
        return "0.0.0.0", settings.host  # noqa: S104  (it may be a name for others only, such as a service's)
    if settings.local:
        return "127.0.0.1", "127.0.0.1"
    address = settings.master.removeprefix("k8s://")
    found = urlsplit(address.partition(",")[0].partition("/;")[0] if "://" in address else f"//{_ELSEWHERE}")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
            probe.connect((found.hostname or _ELSEWHERE, found.port or 443))
            here: str = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise SessionProblem(f"no way to {settings.place} ({error}): correct 'master', or set 'host'") from error
    return here, here
