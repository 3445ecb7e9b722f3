"""The records of layout `tables`: row changes, rows of a refresh, tombstones, and BEGIN / END of commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from kafka.errors import MessageSizeTooLargeError

from astha.events.traceparent import HEADER as TRACE_HEADER
from astha.subscribers import Commit, Event, Operation, Position, Row
from components.kafka_sink.outbox import Outbox, RecordId
from components.kafka_sink.record_encoding import encode_header, encode_headers
from components.kafka_sink.settings import KafkaSinkSettings
from components.lib.change_formats import Message, Origin, open_format, split_key_change
from components.lib.varint import encode_signed

_BEGIN = -1
_END = 1 << 62
_READ = "READ"
_UPDATE, _DELETE = Operation.UPDATE, Operation.DELETE  # an attribute of an enumeration is slow


class _Headers(msgspec.Struct, frozen=True, gc=False):
    """Encoded headers."""

    count: int
    encoded: bytes

    @classmethod
    def of(cls, *headers: tuple[str, bytes]) -> _Headers:
        return cls(len(headers), b"".join([encode_header(name, value) for name, value in headers]))


class _Route(msgspec.Struct, frozen=True, gc=False):
    """Where a table's changes go, and the headers that name the table and operation."""

    topic: str
    headers: _Headers


@lru_cache(maxsize=1 << 12)
def _index_header(index: int) -> bytes:
    return encode_header("index", b"%d" % index)


def _joined(first: _Headers, index: bytes, tail: _Headers, further: Sequence[tuple[str, bytes]]) -> bytes:
    """Returns the headers of a record, in this order. `index`: that header, if it has one."""
    count = encode_signed(first.count + (1 if index else 0) + tail.count + len(further))
    if not further:
        return b"%b%b%b%b" % (count, first.encoded, index, tail.encoded)
    last = b"".join([encode_header(name, value) for name, value in further])
    return b"%b%b%b%b%b" % (count, first.encoded, index, tail.encoded, last)


class TableRecords:
    """Encodes and sends. Used by one thread."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        outbox: Outbox,
        now_ms: Callable[[], int],
        too_large: Callable[[str, bytes], None],
        traceparent: Callable[[Commit | None], bytes | None] = lambda commit: None,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._now_ms = now_ms
        self._too_large = too_large
        self._traceparent = traceparent
        self._format = open_format(settings, "kafka")
        self._routes: dict[tuple[str, str], _Route] = {}  # by table and operation
        self._refresh_records = 0
        self.max_bytes = settings.max_request_bytes

    def send_commits(self, transactions: Sequence[Sequence[Event[Row]]], origin: Origin, submitted: float) -> None:
        """Sends what was not sent before, and waits until all of it is acknowledged."""
        self._outbox.begin(submitted)
        now_ms = self._now_ms()
        for events in transactions:
            self._send_commit(events, origin, now_ms)
        self._outbox.wait()
        self._outbox.forget()

    def send_rows(self, rows: Sequence[Row], origin: Origin, position: Position, ends: bool) -> list[bytes]:
        """Sends rows of a refresh and returns their keys. `ends`: they are its last ones."""
        self._outbox.extend()
        now_ms, last, keys = self._now_ms(), len(rows) - 1, []
        tail = self._tail(origin, position, *self._trace(None))
        for number, row in enumerate(rows):
            message = self._format.snapshot_row(row, position, origin, now_ms, ends and number == last)
            route = self._route(row.table, _READ)
            headers = _joined(route.headers, b"", tail, message.headers)
            self._send(self._next_refresh_record(), route.topic, row.table, message, headers)
            keys.append(message.key or b"")
        return keys

    def send_tombstones(self, table: str, keys: Sequence[bytes], origin: Origin, position: Position) -> None:
        self._outbox.extend()
        route = self._route(table, _DELETE)
        headers = _joined(route.headers, b"", self._tail(origin, position, *self._trace(None)), ())
        for key in keys:
            message = self._format.tombstone(key)
            self._outbox.send(self._next_refresh_record(), route.topic, message.key, None, headers)

    def send_refresh_marker(self, status: str, position: Position, counts: Counter[str]) -> None:
        """Sends BEGIN or END of a refresh, if the settings ask for these records."""
        if self._settings.transaction_topic:
            record, name = self._next_refresh_record(), f"snapshot:{position}"
            self._send_marker(record, status, name, counts, self._now_ms(), self._trace(None))

    def _send_commit(self, events: Sequence[Event[Row]], origin: Origin, now_ms: int) -> None:
        commit = events[0].commit
        position = commit.position
        transaction = b"%d" % commit.transaction
        trace = self._trace(commit)
        tail = self._tail(origin, position, ("transaction", transaction), *trace)
        markers, name = self._settings.transaction_topic, f"{commit.transaction}:{position}"
        if markers:
            self._send_marker((position, _BEGIN, 0), "BEGIN", name, Counter(), now_ms, trace)
        for event in events:
            if event.operation is _UPDATE:
                number = 0
                for part in split_key_change(event):
                    number = self._send_event(part, number, origin, tail, now_ms)
            else:
                self._send_event(event, 0, origin, tail, now_ms)
        if markers:
            counts = Counter(event.table for event in events)
            self._send_marker((position, _END, 0), "END", name, counts, now_ms, trace)

    def _send_event(self, event: Event[Row], number: int, origin: Origin, tail: _Headers, now_ms: int) -> int:
        """Returns the number of the event's next record. Encodes also what was sent: formats count the events."""
        record: RecordId = (event.commit.position, event.index, number)
        message = self._format.change(event, origin, now_ms)
        operation, table = event.operation, event.data.table
        route = self._routes.get((table, operation)) or self._route(table, operation)
        if not self._outbox.knows(record):
            headers = _joined(route.headers, _index_header(event.index), tail, message.headers)
            self._send(record, route.topic, table, message, headers)
        if operation is not _DELETE:
            return number + 1
        record = (event.commit.position, event.index, number + 1)
        if not self._outbox.knows(record):
            headers = _joined(route.headers, _index_header(event.index), tail, ())
            self._outbox.send(record, route.topic, message.key, None, headers)
        return number + 2

    def _send(self, record: RecordId, topic: str, table: str, message: Message, headers: bytes) -> None:
        """A record that the topic can't hold is left out and reported: it would block all later ones."""
        key, value = message.key or b"", message.value or b""
        if len(key) + len(value) <= self.max_bytes:
            try:
                self._outbox.send(record, topic, message.key, message.value, headers)
            except MessageSizeTooLargeError:
                self._too_large(table, key)
        else:
            self._too_large(table, key)

    def _send_marker(
        self,
        record: RecordId,
        status: str,
        name: str,
        counts: Counter[str],
        now_ms: int,
        headers: Sequence[tuple[str, bytes]],
    ) -> None:
        if self._outbox.knows(record):
            return
        ends = status == "END"
        collections = [
            {"data_collection": self._settings.topic_of(table), "event_count": count}
            for table, count in sorted(counts.items())
        ]
        value = {
            "status": status,
            "id": name,
            "event_count": counts.total() if ends else None,
            "data_collections": collections if ends else None,
            "ts_ms": now_ms,
        }
        key, encoded = msgspec.json.encode({"id": name}), msgspec.json.encode(value)
        self._outbox.send(record, self._settings.markers_topic, key, encoded, encode_headers(headers))

    def _route(self, table: str, operation: str) -> _Route:
        headers = _Headers.of(("table", table.encode()), ("operation", str(operation).encode()))
        return self._routes.setdefault((table, operation), _Route(self._settings.topic_of(table), headers))

    def _tail(self, origin: Origin, position: Position, *further: tuple[str, bytes]) -> _Headers:
        return _Headers.of(("position", b"%d" % position), ("epoch", b"%d" % origin.epoch), *further)

    def _trace(self, commit: Commit | None) -> list[tuple[str, bytes]]:
        """Returns the trace context of a commit, or of the refresh in progress."""
        trace = self._traceparent(commit)
        return [] if trace is None else [(TRACE_HEADER, trace)]

    def _next_refresh_record(self) -> RecordId:
        self._refresh_records += 1
        return (-1, self._refresh_records)
