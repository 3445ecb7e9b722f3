"""The stream of events for watchers: encoded once and sent to the listener without waiting, or counted as missed.

Encoding comes after the lanes have been woken, takes at most a tenth of the event loop's time, and stops while the
listener has not taken earlier frames. Events left out for either reason are counted, and watchers get the count.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from astha.events import Event, Transaction
from astha.listener.link import EventFrame, TableLines
from registry.json_text import json_columns
from registry.models import Row

_SHARE = 0.1
_BURST_S = 0.01
"""Longest encoding without a pause, after an idle period."""

_INTERVAL_S = 0.02
"""Time between two sends: waking the listener for every commit would cost more than the encoding."""

_MAX_PENDING_BYTES = 1024 * 1024
"""Transactions that wait for that time, at most."""

_SLICE_EVENTS = 256
_FRAME_EVENTS = 256
_FRAME_BYTES = 64 * 1024


class EventLine(msgspec.Struct, frozen=True):
    """One event as a line of JSON."""

    table: str
    operation: str
    position: int
    transaction: int
    index: int
    last: bool
    committed_at_us: int
    data: Row | dict[str, object]
    before: Row | dict[str, object] | None


class EventStream:
    """An observer for `Daemon.observers`. Costs nothing while there are no watchers.

    `has_room` returns whether the listener takes more, `send` sends it a frame; neither waits.
    """

    def __init__(self, send: Callable[[EventFrame], None], has_room: Callable[[], bool], frame_events: int) -> None:
        self.tables: frozenset[str] = frozenset()  # watched ones
        self._send = send
        self._has_room = has_room
        self._frame_events = min(_FRAME_EVENTS, frame_events)
        self._pending: list[Sequence[Transaction]] = []
        self._pending_bytes = 0
        self._scheduled: asyncio.Handle | None = None
        self._sent_at = float("-inf")
        self._missed: Counter[str] = Counter()
        self._budget_s = _BURST_S
        self._refilled = time.perf_counter()

    def __call__(self, transactions: Sequence[Transaction]) -> None:
        if not self.tables:
            return
        loop = asyncio.get_running_loop()
        self._pending.append(transactions)
        self._pending_bytes += sum(transaction.size_bytes for transaction in transactions)
        if self._scheduled is None:
            wait_s = self._sent_at + _INTERVAL_S - loop.time()
            self._scheduled = (
                loop.call_soon(self._send_pending)  # after the lanes, which have been woken before
                if wait_s <= 0
                else loop.call_later(wait_s, self._send_pending)
            )
        elif self._pending_bytes > _MAX_PENDING_BYTES and isinstance(self._scheduled, asyncio.TimerHandle):
            self._scheduled.cancel()
            self._scheduled = loop.call_soon(self._send_pending)

    def _send_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        self._scheduled, self._sent_at = None, asyncio.get_running_loop().time()
        parts: list[TableLines] = []
        events = size = 0
        self._refill()
        for transaction in (each for transactions in pending for each in transactions):
            if not self.tables & transaction.tables:
                continue
            encoded = self._encode(transaction)
            if encoded is None:
                if parts:
                    self._flush(parts)
                    parts, events, size = [], 0, 0
                self._missed.update(self._count(transaction))
                continue
            added = sum(part.events for part in encoded)
            if size >= _FRAME_BYTES or (events and events + added > self._frame_events):
                self._flush(parts)
                parts, events, size = [], 0, 0
            parts += encoded
            events += added
            size += sum(len(part.lines) for part in encoded)
        self._flush(parts)

    def _refill(self) -> None:
        now = time.perf_counter()
        self._budget_s = min(_BURST_S, self._budget_s + (now - self._refilled) * _SHARE)
        self._refilled = now

    def _flush(self, parts: list[TableLines]) -> None:
        """Sends the parts with the counts of missed events, or counts the parts as missed if there is no room."""
        if (parts or self._missed) and self._has_room():
            missed, self._missed = dict(self._missed), Counter()
            self._send(EventFrame(parts, missed))
        else:
            for part in parts:
                self._missed[part.table] += part.events

    def _encode(self, transaction: Transaction) -> list[TableLines] | None:
        """Returns None if there is no room or no time for the whole transaction."""
        if not self._has_room():
            return None
        parts: list[TableLines] = []
        for kind, slice_ in _slices(transaction, self.tables):
            if self._budget_s <= 0:
                return None
            started = time.perf_counter()
            parts.append(TableLines(kind, len(slice_), _encoder.encode_lines(map(_line, slice_))))
            self._budget_s -= time.perf_counter() - started
        return parts

    def _count(self, transaction: Transaction) -> dict[str, int]:
        if len(transaction.tables) == 1 and not transaction.unlisted:
            return dict.fromkeys(transaction.tables, len(transaction.events))
        counted = Counter([event.data.table for event in transaction.events])
        return {table: number for table, number in counted.items() if table in self.tables}


def _slices(transaction: Transaction, tables: frozenset[str]) -> Iterator[tuple[str, list[Event[Row]]]]:
    """Yields consecutive events of one table, few enough for a time slice."""
    for table, consecutive in groupby(transaction.events, key=lambda event: event.data.table):
        if table in tables:
            events = list(consecutive)
            for start in range(0, len(events), _SLICE_EVENTS):
                yield table, events[start : start + _SLICE_EVENTS]


def _line(event: Event[Row]) -> EventLine:
    return EventLine(
        event.table, str(event.operation), event.position, event.transaction, event.index, event.last,
        event.committed_at, _shown(event.data), None if event.before is None else _shown(event.before),
    )  # fmt: skip


def _shown(row: Row) -> Row | dict[str, object]:
    """Returns the row with the JSON of its JSON columns embedded, not quoted."""
    columns = json_columns(type(row))
    if not columns:
        return row
    shown: dict[str, object] = msgspec.structs.asdict(row)
    for name in columns:
        if (text := shown[name]) is not None:
            shown[name] = msgspec.Raw(str(text).encode())
    return shown


_encoder = msgspec.json.Encoder()
