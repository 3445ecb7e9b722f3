"""Live streams of dashboards: server-sent events with the daemon's status, the same bytes for all.

A status replaces the one before, so nothing is buffered: a client that has not taken the last one skips this one, and
one that takes nothing for 30 s is disconnected.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from astha.listener.history import History
from astha.listener.queries import DaemonQueries, DaemonUnresponsive
from astha.listener.watchers import http_chunk

_WATCHED_S = 1.0
_UNWATCHED_S = 5.0
_TIMEOUT_S = 5.0
_STALLED_AFTER_S = 30.0


class LiveStream:
    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.ended = asyncio.Event()
        self._transport = transport
        self._wrote = time.monotonic()

    def write(self, chunk: bytes) -> bool:
        """Returns False if the client has stalled; it is disconnected then."""
        if self._transport.is_closing():
            self.ended.set()
        elif not self._transport.get_write_buffer_size():
            self._transport.write(chunk)
            self._wrote = time.monotonic()
        elif time.monotonic() - self._wrote > _STALLED_AFTER_S:
            self._transport.abort()
            self.ended.set()
            return False
        return True


class Live:
    def __init__(self, queries: DaemonQueries) -> None:
        self.history = History()
        self.dropped = 0
        self._queries = queries
        self._streams: set[LiveStream] = set()
        self._last: bytes | None = None
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, transport: asyncio.WriteTransport) -> LiveStream:
        stream = LiveStream(transport)
        self._streams.add(stream)
        if self._last is not None:
            stream.write(self._last)
        self._wake.set()
        return stream

    def remove(self, stream: LiveStream) -> None:
        self._streams.discard(stream)

    def end(self) -> None:
        for stream in self._streams:
            stream.ended.set()

    async def run(self) -> None:
        """Runs until cancelled: samples the status, more often while a dashboard is open."""
        while True:
            self._wake.clear()
            self._publish(*await self._sample())
            try:
                async with asyncio.timeout(_WATCHED_S if self._streams else _UNWATCHED_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _sample(self) -> tuple[str, object]:
        try:
            reply = await self._queries.query("status", _TIMEOUT_S)
        except DaemonUnresponsive:
            return "problem", {"error": "the daemon's event loop does not respond: it is blocked or overloaded"}
        if reply.status != 200:
            return "problem", {"error": "the daemon can't report its status: see its log"}
        status: dict[str, Any] = msgspec.json.decode(reply.body)
        return "status", self.history.add(status, time.time_ns() // 1_000_000)

    def _publish(self, event: str, value: object) -> None:
        chunk = http_chunk(f"event: {event}\ndata: ".encode(), msgspec.json.encode(value), b"\n\n")
        self._last = chunk if event == "status" else None
        for stream in self._streams:
            if not stream.write(chunk):
                self.dropped += 1
