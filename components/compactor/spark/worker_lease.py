"""The driver's side of the worker lease: at most one process works on a task, and the driver knows when none does.

A worker connects, sends the task's token and waits for ``go``. It holds the lease until it sends ``bye`` or its
connection ends, which happens when its process does. If Spark starts another attempt while one holds the lease (it lost
sight of an executor), the new one waits until the first was stopped. Decision 0011 says what this buys.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

import structlog

from components.lib.spark.errors import SessionProblem

log = structlog.get_logger(__name__)

_HELLO_S = 10.0
_MOST_LOST_HOLDERS = 2


@dataclass(eq=False)
class LeaseHolder:
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
class TaskLease:
    """The lease of one task, over all attempts that Spark makes of it."""

    local: bool  # outputs are local files: no request of a dead process can be in flight
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    attempts: int = 0
    revoked: bool = False
    holder: LeaseHolder | None = None
    held_since: float | None = None  # when the present holder was let go
    lost_holders: list[LeaseHolder] = field(default_factory=list)  # their connections ended without ``bye``
    may_still_write: bool = False  # set for good once an attempt can't be accounted for
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stop_holder(self) -> None:
        if self.holder is not None and not self.holder.writer.is_closing():
            self.holder.writer.write(b"stop\n")

    async def revoke(self, limit_s: float) -> bool:
        """Lets no attempt begin and stops the present one. Returns whether the task writes nothing any more."""
        self.revoked = True
        self.stop_holder()
        return await self.released(limit_s) and not self.may_still_write

    async def released(self, limit_s: float) -> bool:
        """Waits until no process holds it. Returns False after ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                while self.holder is not None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True


class LeaseServer:
    def __init__(self, take_over_s: float) -> None:
        """``take_over_s``: how long another attempt waits for the end of the one before."""
        self._take_over_s = take_over_s
        self._leases: dict[str, TaskLease] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Returns the port that it listens at."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise SessionProblem(
                f"workers can't connect to {host}:{port} ({error}): set host to an address of this machine, port to 0"
            ) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def issue(self, *, local: bool) -> TaskLease:
        lease = TaskLease(local)
        self._leases[lease.token] = lease
        return lease

    def withdraw(self, lease: TaskLease) -> None:
        lease.revoked = True
        self._leases.pop(lease.token, None)

    async def close(self) -> None:
        """Closes all connections. Workers stop when they see that."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # noqa: S101
        self._connections.add(connection)
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.CancelledError):  # ValueError: a line without an end, so not a worker
            log.debug("worker connection ended")
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HELLO_S):
            words = (await reader.readline()).decode(errors="replace").split()
        lease = self._leases.get(words[0]) if len(words) == 4 else None
        if lease is None:
            return await _send(writer, "no the task is no longer wanted")
        holder = LeaseHolder(words[1], words[2], words[3], writer)
        if lease.holder is not None:
            log.warning("another attempt of a task that is still held", holder=str(lease.holder), by=str(holder))
            lease.stop_holder()
            if not await lease.released(self._take_over_s):
                lease.may_still_write = True
        if (reason := _refusal(lease, holder)) is not None:
            return await _send(writer, f"no {reason}")
        lease.holder, lease.held_since = holder, time.monotonic()
        lease.attempts += 1
        try:
            await _send(writer, "go")
            await self._until_released(lease, holder, reader)
        except BaseException:
            lease.may_still_write = True  # the driver hung up, so it does not learn when the worker ends
            raise
        finally:
            lease.holder = lease.held_since = None
            lease.changed.set()
        return None

    async def _until_released(self, lease: TaskLease, holder: LeaseHolder, reader: asyncio.StreamReader) -> None:
        try:
            goodbye = await reader.readline()
        except ConnectionResetError:
            goodbye = b""
        if goodbye != b"bye\n":
            lease.lost_holders.append(holder)
            lease.may_still_write = lease.may_still_write or not lease.local


def _refusal(lease: TaskLease, holder: LeaseHolder) -> str | None:
    if lease.revoked:
        return "the task is no longer wanted"
    if lease.may_still_write:
        return "an earlier attempt may still be writing"
    if len(lease.lost_holders) >= _MOST_LOST_HOLDERS or any(
        lost.executor == holder.executor for lost in lease.lost_holders
    ):
        return f"{lease.lost_holders[-1]} died at this task"
    return None


async def _send(writer: asyncio.StreamWriter, words: str) -> None:
    writer.write(f"{words}\n".encode())
    await writer.drain()
