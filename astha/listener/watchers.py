"""Events for those who watch: each batch is joined once per filter, and written to many in one go.

What waits for a watcher is bounded by events and by bytes, and what waits for all of them by bytes; what does not fit
is counted and told. Writing to all watchers is one pulse; the next one comes after a rest of 15 times its length, so
that however many watch, the listener has most of its time for other requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from astha.listener.link import Batch
from astha.listener.options import Options

_WRITE_AT_ONCE_BYTES = 256 * 1024
_JOINED_BYTES = 64 * 1024
_REST = 15
_SHORTEST_PULSE_S = 0.001
_BACKLOG_PULSE_S = 0.02
_HEARTBEAT_S = 10.0
"""An empty line for each watcher, so that either side notices when the other is gone."""

_STALLED_AFTER_S = 60.0
_SHARES = 16
"""All watchers together may keep as many bytes as so many of them alone."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Lines for all watchers of one filter, as HTTP's chunked encoding has them. `missed` counts what is not there."""

    chunk: bytes
    events: int = 0
    missed: int = 0


def _chunk(*lines: bytes) -> bytes:
    return b"".join([b"%x\r\n" % sum(map(len, lines)), *lines, b"\r\n"])


def _gap(missed: int) -> Piece:
    return Piece(_chunk(b'{"missed":%d}\n' % missed), missed=missed)


_HEARTBEAT = Piece(_chunk(b"\n"))


class Room:
    """Bytes that wait for all watchers together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0


class Watcher:
    """One reader. `ended` is set when its connection is gone or the listener stops."""

    def __init__(self, tables: frozenset[str], transport: asyncio.WriteTransport, options: Options, room: Room) -> None:
        self.tables = tables
        self.ended = asyncio.Event()
        self.missed_in_all = 0
        self._transport = transport
        self._options = options
        self._room = room
        self._kept: deque[Piece] = deque()
        self._events = self._bytes = self._missed = 0
        self._wrote = time.monotonic()

    @property
    def waits(self) -> bool:
        return bool(self._kept or self._missed)

    def offer(self, piece: Piece) -> None:
        """Keeps it, or counts it as missed. After the first that was missed nothing is kept until the gap is told."""
        self.missed_in_all += piece.missed
        if not self._missed and self._fits(piece):
            self._kept.append(piece)
            self._take(piece, 1)
        else:
            self._missed += piece.events + piece.missed
            self.missed_in_all += piece.events

    def _fits(self, piece: Piece) -> bool:
        size = len(piece.chunk)
        return (
            self._events + piece.events <= self._options.buffer_events
            and self._bytes + size <= self._options.buffer_bytes
            and self._room.taken + size <= self._room.limit
        )

    def _take(self, piece: Piece, sign: int) -> None:
        size = sign * len(piece.chunk)
        self._events += sign * piece.events
        self._bytes += size
        self._room.taken += size

    def write(self, now: float) -> None:
        """As much as the connection takes; nothing while it has not sent what it was given before."""
        if self._transport.is_closing():
            self.ended.set()
            return
        if self._transport.get_write_buffer_size():
            if now - self._wrote > _STALLED_AFTER_S:
                self._transport.abort()
            return
        written = 0
        while self._kept and written < _WRITE_AT_ONCE_BYTES:
            piece = self._kept.popleft()
            self._take(piece, -1)
            written += self._put(piece)
        if self._missed and not self._kept:
            missed, self._missed = self._missed, 0
            written += self._put(_gap(missed))
        if not written and now - self._wrote > _HEARTBEAT_S:
            written += self._put(_HEARTBEAT)
        if written:
            self._wrote = now

    def _put(self, piece: Piece) -> int:
        self._transport.write(piece.chunk)
        return len(piece.chunk)

    def forget(self) -> None:
        self._room.taken -= self._bytes
        self._kept.clear()
        self._events = self._bytes = 0


class Watchers:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._room = Room(_SHARES * options.buffer_bytes)
        self._all: set[Watcher] = set()
        self._pending: list[Batch] = []
        self._pending_bytes = 0
        self._next: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._missed_by_gone = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def missed(self) -> int:
        return self._missed_by_gone + sum(watcher.missed_in_all for watcher in self._all)

    @property
    def bytes_waiting(self) -> int:
        return self._room.taken

    def add(self, tables: frozenset[str], transport: asyncio.WriteTransport) -> Watcher:
        self._pulse()  # what came before is not for the new one
        watcher = Watcher(tables, transport, self._options, self._room)
        self._all.add(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        self._all.discard(watcher)
        self._missed_by_gone += watcher.missed_in_all
        watcher.forget()

    def end(self) -> None:
        for watcher in self._all:
            watcher.ended.set()

    def arrived(self, batch: Batch) -> None:
        self._pending.append(batch)
        self._pending_bytes += sum(len(part.lines) for part in batch.parts)
        if self._pending_bytes > self._options.buffer_bytes:
            self._pulse()  # more would only be missed later
        else:
            self._schedule(self._not_before)

    def beat(self) -> None:
        """To be called about once a second: heartbeats, and readers that are gone."""
        now = time.monotonic()
        for watcher in list(self._all):
            if not watcher.waits:
                watcher.write(now)

    def _schedule(self, at: float) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_at(at, self._pulse)

    def _pulse(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        started = time.monotonic()
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        joined: dict[frozenset[str], list[Piece]] = {}
        backlog = False
        for watcher in self._all:
            pieces = joined.get(watcher.tables)
            if pieces is None:
                pieces = joined[watcher.tables] = join(pending, watcher.tables, self._options.buffer_events)
            for piece in pieces:
                watcher.offer(piece)
            if watcher.waits:
                watcher.write(started)
                backlog = backlog or watcher.waits
        took = time.monotonic() - started
        self._not_before = started + took + max(_SHORTEST_PULSE_S, _REST * took)
        if backlog:
            self._schedule(max(self._not_before, started + _BACKLOG_PULSE_S))


def join(batches: list[Batch], tables: frozenset[str], most_events: int) -> list[Piece]:
    """What watchers of `tables` get of these, in pieces of whole batches. Gaps stand where they are."""
    pieces: list[Piece] = []
    lines: list[bytes] = []
    events = size = 0

    def close() -> None:
        nonlocal events, size
        if events:
            pieces.append(Piece(_chunk(*lines), events))
        lines.clear()
        events = size = 0

    for batch in batches:
        missed = sum(number for table, number in batch.missed.items() if table in tables)
        wanted = [part for part in batch.parts if part.table in tables]
        count = sum(part.events for part in wanted)
        if missed or size >= _JOINED_BYTES or events + count > most_events:
            close()
        if missed:
            pieces.append(_gap(missed))
        for part in wanted:
            lines.append(part.lines)
            size += len(part.lines)
        events += count
    close()
    return pieces
