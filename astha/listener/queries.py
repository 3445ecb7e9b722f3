"""Queries to the daemon, at a bounded rate.

Concurrent requests of one kind share a query. A reply is always newer than the request that gets it, except for
metrics, which may be a second old. The pause between two queries of a kind is at least fifty times as long as the
daemon's event loop took for the last one, so that a kind takes at most 2 percent of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from astha.listener.link import ListenerCounts, Query, Reply

_INTERVAL_S = {"readiness": 0.05, "routes": 0.05, "status": 0.1, "text": 1.0, "openmetrics": 1.0}
_CACHED_S = {"text": 1.0, "openmetrics": 1.0}
_PAUSE_FACTOR = 50
_MAX_VIEWS = 3
_MAX_VIEW_PAUSE_S = 1.0


class DaemonUnresponsive(Exception):
    """The daemon's event loop did not reply in time."""


class DaemonQueries:
    def __init__(self, send: Callable[[msgspec.Struct], None], counts: Callable[[], ListenerCounts]) -> None:
        self._send = send
        self._counts = counts
        self._number = 0
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._shared: dict[str, _SharedQuery] = {}
        self._views = asyncio.Semaphore(_MAX_VIEWS)

    async def query(self, kind: str, timeout_s: float) -> Reply:
        """Raises DaemonUnresponsive after `timeout_s`."""
        shared = self._shared.get(kind)
        if shared is None:
            shared = _SharedQuery(lambda: self.act(kind, None, None), _INTERVAL_S[kind], _CACHED_S.get(kind, 0.0))
            self._shared[kind] = shared
        try:
            async with asyncio.timeout(timeout_s):
                return await shared.reply()
        except TimeoutError:
            raise DaemonUnresponsive from None

    async def view(self, kind: str, arguments: dict[str, str], timeout_s: float, *, table: str | None = None) -> Reply:
        """Sends a query for a page of the registry. A few are sent at a time, and each holds its place for fifty times
        as long as the daemon's event loop took for it. Raises DaemonUnresponsive after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._views.acquire()
                pause_s = 0.0
                try:
                    reply = await self.act(kind, None, None, table=table, arguments=arguments)
                    pause_s = min(_MAX_VIEW_PAUSE_S, reply.took_s * _PAUSE_FACTOR)
                    return reply
                finally:
                    asyncio.get_running_loop().call_later(pause_s, self._views.release)
        except TimeoutError:
            raise DaemonUnresponsive from None

    async def act(
        self,
        kind: str,
        component: str | None,
        peer: str | None,
        *,
        table: str | None = None,
        arguments: dict[str, str] | None = None,
        client: str | None = None,
    ) -> Reply:
        """Sends a query that is not shared."""
        self._number += 1
        number = self._number
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[number] = reply
        try:
            self._send(
                Query(
                    number=number,
                    kind=kind,
                    component=component,
                    table=table,
                    arguments=arguments or {},
                    peer=peer,
                    client=client,
                    counts=self._counts(),
                )
            )
            return await reply
        finally:
            del self._open[number]

    def replied(self, reply: Reply) -> None:
        waiting = self._open.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)


class _SharedQuery:
    def __init__(self, send: Callable[[], Awaitable[Reply]], interval_s: float, cached_s: float) -> None:
        self._send = send
        self._interval_s = interval_s
        self._cached_s = cached_s
        self._cached: Reply | None = None
        self._sent = float("-inf")  # time of the last query
        self._pause_s = 0.0
        self._waiting: asyncio.Task[Reply] | None = None  # a query that is not sent yet: callers may join it
        self._under_way: asyncio.Task[Reply] | None = None

    async def reply(self) -> Reply:
        cached_s = max(self._cached_s, self._pause_s) if self._cached_s else 0.0
        if self._cached is not None and time.monotonic() - self._sent < cached_s:
            return self._cached
        joined = self._under_way if self._cached_s and self._under_way is not None else self._waiting
        if joined is None:
            joined = self._waiting = asyncio.create_task(self._query(self._under_way))
        return await asyncio.shield(joined)

    async def _query(self, before: asyncio.Task[Reply] | None) -> Reply:
        if before is not None:
            await asyncio.wait({before})
        pause_s = self._sent + max(self._interval_s, self._pause_s) - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._under_way, self._waiting = self._waiting, None
        self._sent = time.monotonic()
        try:
            reply = await self._send()
        finally:
            self._under_way = None
        self._pause_s = reply.took_s * _PAUSE_FACTOR
        self._cached = reply if self._cached_s and reply.status == 200 else None
        return reply
