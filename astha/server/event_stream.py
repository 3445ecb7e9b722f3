"""Events as they pass, for those who watch: encoded once, handed to the listener without waiting, or counted.

Encoding comes after the lanes have had their turn, takes at most a tenth of the loop's time, and stops while the
listener has not taken what it was given. What is left out for either reason is counted and told to the watchers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from astha.events import Event, Transaction
from astha.listener.link import Batch, Part
from registry.json_text import json_columns
from registry.models import Row

_SHARE = 0.1
_BURST_S = 0.01
"""Of encoding without a pause, after a while without any."""

_INTERVAL_S = 0.02
"""Between two hand-overs: waking the listener for every commit would cost more than encoding does."""

_HELD_BYTES = 1024 * 1024
"""Of transactions that wait for that time, at most."""

_SLICE_EVENTS = 256
_FRAME_EVENTS = 256
_FRAME_BYTES = 64 * 1024


class Seen(msgspec.Struct, frozen=True):
    """One event, as JSON tells it."""

    table: str
    operation: str
    position: int
    transaction: int
    index: int
    last: bool
    committed_at_us: int
    data: Row | dict[str, object]
    before: Row | dict[str, object] | None


class Tap:
    """To be put into `Daemon.taps`. Costs nothing while nobody watches.

    `room` says whether the listener takes more, `send` gives it a batch; neither waits.
    """

    def __init__(self, send: Callable[[Batch], None], room: Callable[[], bool], frame_events: int) -> None:
        self.tables: frozenset[str] = frozenset()  # that are watched
        self._send = send
        self._room = room
        self._frame_events = min(_FRAME_EVENTS, frame_events)
        self._passed: list[Sequence[Transaction]] = []
        self._passed_bytes = 0
        self._scheduled: asyncio.Handle | None = None
        self._handed_over = float("-inf")
        self._missed: Counter[str] = Counter()
        self._budget_s = _BURST_S
        self._looked = time.perf_counter()

    def __call__(self, transactions: Sequence[Transaction]) -> None:
        if not self.tables:
            return
        loop = asyncio.get_running_loop()
        self._passed.append(transactions)
        self._passed_bytes += sum(transaction.size_bytes for transaction in transactions)
        if self._scheduled is None:
            wait_s = self._handed_over + _INTERVAL_S - loop.time()
            self._scheduled = (
                loop.call_soon(self._hand_over)  # after the lanes, which were woken before
                if wait_s <= 0
                else loop.call_later(wait_s, self._hand_over)
            )
        elif self._passed_bytes > _HELD_BYTES and isinstance(self._scheduled, asyncio.TimerHandle):
            self._scheduled.cancel()
            self._scheduled = loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        passed, self._passed, self._passed_bytes = self._passed, [], 0
        self._scheduled, self._handed_over = None, asyncio.get_running_loop().time()
        parts: list[Part] = []
        events = size = 0
        self._refill()
        for transaction in (each for transactions in passed for each in transactions):
            if not self.tables & transaction.tables:
                continue
            encoded = self._encode(transaction)
            if encoded is None:
                if parts:
                    self._flush(parts)
                    parts, events, size = [], 0, 0
                self._missed.update(self._counted(transaction))
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
        self._budget_s = min(_BURST_S, self._budget_s + (now - self._looked) * _SHARE)
        self._looked = now

    def _flush(self, parts: list[Part]) -> None:
        """With what was missed before. A count of what is missed goes out as soon as there is room for it."""
        if (parts or self._missed) and self._room():
            missed, self._missed = dict(self._missed), Counter()
            self._send(Batch(parts, missed))
        else:
            for part in parts:
                self._missed[part.table] += part.events

    def _encode(self, transaction: Transaction) -> list[Part] | None:
        """None if there is no room or no time for all of it."""
        if not self._room():
            return None
        parts: list[Part] = []
        for kind, slice_ in _slices(transaction, self.tables):
            if self._budget_s <= 0:
                return None
            started = time.perf_counter()
            parts.append(Part(kind, len(slice_), _encoder.encode_lines(map(_seen, slice_))))
            self._budget_s -= time.perf_counter() - started
        return parts

    def _counted(self, transaction: Transaction) -> dict[str, int]:
        if len(transaction.tables) == 1 and not transaction.unlisted:
            return dict.fromkeys(transaction.tables, len(transaction.events))
        counted = Counter([event.data.table for event in transaction.events])
        return {table: number for table, number in counted.items() if table in self.tables}


def _slices(transaction: Transaction, tables: frozenset[str]) -> Iterator[tuple[str, list[Event[Row]]]]:
    """Consecutive events of one table, few enough to be encoded in a time slice."""
    for table, consecutive in groupby(transaction.events, key=lambda event: event.data.table):
        if table in tables:
            events = list(consecutive)
            for start in range(0, len(events), _SLICE_EVENTS):
                yield table, events[start : start + _SLICE_EVENTS]


def _seen(event: Event[Row]) -> Seen:
    return Seen(
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
