"""Watchers of events: each frame is encoded once per filter and written to all watchers together.

The buffer of a watcher is bounded by events and bytes, all buffers together by bytes. Events that do not fit are
counted, and the watcher gets the count. After a round of writes to all watchers the listener pauses for 15 times its
duration, so that it has most of its time for other requests, however many watchers there are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from astha.listener.link import EventFrame
from astha.listener.options import Options

_MAX_WRITE_BYTES = 256 * 1024
_CHUNK_BYTES = 64 * 1024
_PAUSE_FACTOR = 15
_MIN_PAUSE_S = 0.001
_BACKLOG_INTERVAL_S = 0.02
_HEARTBEAT_S = 10.0
"""An empty line for each watcher, so that both sides notice a broken connection."""

_STALLED_AFTER_S = 60.0
_FULL_BUFFERS = 16
"""The buffers of all watchers together have the size of this many full ones."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Lines for all watchers of one filter, in HTTP's chunked encoding. `missed` counts the events left out."""

    data: bytes
    events: int = 0
    missed: int = 0


def http_chunk(*lines: bytes) -> bytes:
    """Returns the lines in HTTP's chunked encoding."""
    return b"".join([b"%x\r\n" % sum(map(len, lines)), *lines, b"\r\n"])


def _gap(missed: int) -> Chunk:
    return Chunk(http_chunk(b'{"missed":%d}\n' % missed), missed=missed)


_HEARTBEAT = Chunk(http_chunk(b"\n"))


class SharedBuffer:
    """Bytes in the buffers of all watchers together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0


class Watcher:
    """One reader. `ended` is set when its connection is gone or the listener stops."""

    def __init__(
        self, tables: frozenset[str], transport: asyncio.WriteTransport, options: Options, shared: SharedBuffer
    ) -> None:
        self.tables = tables
        self.ended = asyncio.Event()
        self.missed_total = 0
        self._transport = transport
        self._options = options
        self._shared = shared
        self._buffer: deque[Chunk] = deque()
        self._events = self._bytes = self._missed = 0
        self._wrote = time.monotonic()

    @property
    def has_backlog(self) -> bool:
        return bool(self._buffer or self._missed)

    def offer(self, chunk: Chunk) -> None:
        """Buffers the chunk, or counts it as missed. After that, nothing is buffered until the count is written."""
        self.missed_total += chunk.missed
        if not self._missed and self._fits(chunk):
            self._buffer.append(chunk)
            self._account(chunk, 1)
        else:
            self._missed += chunk.events + chunk.missed
            self.missed_total += chunk.events

    def _fits(self, chunk: Chunk) -> bool:
        size = len(chunk.data)
        return (
            self._events + chunk.events <= self._options.buffer_events
            and self._bytes + size <= self._options.buffer_bytes
            and self._shared.taken + size <= self._shared.limit
        )

    def _account(self, chunk: Chunk, sign: int) -> None:
        size = sign * len(chunk.data)
        self._events += sign * chunk.events
        self._bytes += size
        self._shared.taken += size

    def write(self, now: float) -> None:
        """Writes as much as the connection takes; nothing before it has sent the last write."""
        if self._transport.is_closing():
            self.ended.set()
            return
        if self._transport.get_write_buffer_size():
            if now - self._wrote > _STALLED_AFTER_S:
                self._transport.abort()
            return
        written = 0
        while self._buffer and written < _MAX_WRITE_BYTES:
            chunk = self._buffer.popleft()
            self._account(chunk, -1)
            written += self._put(chunk)
        if self._missed and not self._buffer:
            missed, self._missed = self._missed, 0
            written += self._put(_gap(missed))
        if not written and now - self._wrote > _HEARTBEAT_S:
            written += self._put(_HEARTBEAT)
        if written:
            self._wrote = now

    def _put(self, chunk: Chunk) -> int:
        self._transport.write(chunk.data)
        return len(chunk.data)

    def clear(self) -> None:
        self._shared.taken -= self._bytes
        self._buffer.clear()
        self._events = self._bytes = 0


class Watchers:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._shared = SharedBuffer(_FULL_BUFFERS * options.buffer_bytes)
        self._all: set[Watcher] = set()
        self._pending: list[EventFrame] = []
        self._pending_bytes = 0
        self._next: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._missed_by_removed = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def missed(self) -> int:
        return self._missed_by_removed + sum(watcher.missed_total for watcher in self._all)

    @property
    def bytes_waiting(self) -> int:
        return self._shared.taken

    def add(self, tables: frozenset[str], transport: asyncio.WriteTransport) -> Watcher:
        self._write_all()  # earlier events are not for the new watcher
        watcher = Watcher(tables, transport, self._options, self._shared)
        self._all.add(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        self._all.discard(watcher)
        self._missed_by_removed += watcher.missed_total
        watcher.clear()

    def end(self) -> None:
        for watcher in self._all:
            watcher.ended.set()

    def received(self, frame: EventFrame) -> None:
        self._pending.append(frame)
        self._pending_bytes += sum(len(part.lines) for part in frame.parts)
        if self._pending_bytes > self._options.buffer_bytes:
            self._write_all()  # later, these events would be missed
        else:
            self._schedule(self._not_before)

    def beat(self) -> None:
        """Call about once a second: sends heartbeats, and notices watchers that have left."""
        now = time.monotonic()
        for watcher in list(self._all):
            if not watcher.has_backlog:
                watcher.write(now)

    def _schedule(self, at: float) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_at(at, self._write_all)

    def _write_all(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        started = time.monotonic()
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        by_filter: dict[frozenset[str], list[Chunk]] = {}
        backlog = False
        for watcher in self._all:
            chunks = by_filter.get(watcher.tables)
            if chunks is None:
                chunks = by_filter[watcher.tables] = join(pending, watcher.tables, self._options.buffer_events)
            for chunk in chunks:
                watcher.offer(chunk)
            if watcher.has_backlog:
                watcher.write(started)
                backlog = backlog or watcher.has_backlog
        took = time.monotonic() - started
        self._not_before = started + took + max(_MIN_PAUSE_S, _PAUSE_FACTOR * took)
        if backlog:
            self._schedule(max(self._not_before, started + _BACKLOG_INTERVAL_S))


def join(frames: list[EventFrame], tables: frozenset[str], max_events: int) -> list[Chunk]:
    """Returns the chunks for watchers of `tables`, each of whole frames. Missed events are reported in their place."""
    chunks: list[Chunk] = []
    lines: list[bytes] = []
    events = size = 0

    def close() -> None:
        nonlocal events, size
        if events:
            chunks.append(Chunk(http_chunk(*lines), events))
        lines.clear()
        events = size = 0

    for frame in frames:
        missed = sum(number for table, number in frame.missed.items() if table in tables)
        wanted = [part for part in frame.parts if part.table in tables]
        count = sum(part.events for part in wanted)
        if missed or size >= _CHUNK_BYTES or events + count > max_events:
            close()
        if missed:
            chunks.append(_gap(missed))
        for part in wanted:
            lines.append(part.lines)
            size += len(part.lines)
        events += count
    close()
    return chunks
