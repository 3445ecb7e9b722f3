"""The records of layout `tables`: row changes, rows of a refresh, tombstones, and BEGIN / END of commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from kafka.errors import MessageSizeTooLargeError

from astha.subscribers import Event, Operation, Position, Row
from components.kafka_sink.outbox import Outbox, RecordId
from components.kafka_sink.settings import KafkaSinkSettings
from components.lib.change_formats import Message, Origin, open_format, split_key_change

Headers: TypeAlias = list[tuple[str, bytes]]

_BEGIN = -1
_END = 1 << 62
_OPERATIONS = {operation: str(operation).encode() for operation in Operation}


class TableRecords:
    """Encodes and sends. Used by one thread."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        outbox: Outbox,
        now_ms: Callable[[], int],
        too_large: Callable[[str, bytes], None],
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._now_ms = now_ms
        self._too_large = too_large
        self._format = open_format(settings, "kafka")
        self._topics: dict[str, tuple[str, bytes]] = {}  # by table: its topic, and its name as a header
        self._refresh_records = 0
        self.max_bytes = settings.max_request_bytes

    def send_commits(self, transactions: Sequence[Sequence[Event[Row]]], origin: Origin) -> None:
        """Sends what was not sent before, and waits until all of it is acknowledged."""
        self._outbox.begin()
        now_ms = self._now_ms()
        for events in transactions:
            self._send_commit(events, origin, now_ms)
        self._outbox.wait()
        self._outbox.forget()

    def send_rows(self, rows: Sequence[Row], origin: Origin, position: Position, ends: bool) -> list[bytes]:
        """Sends rows of a refresh and returns their keys. `ends`: they are its last ones."""
        self._outbox.extend()
        now_ms, last, keys = self._now_ms(), len(rows) - 1, []
        tail = self._tail(origin, position)
        for number, row in enumerate(rows):
            message = self._format.snapshot_row(row, position, origin, now_ms, ends and number == last)
            topic, table = self._topic(row.table)
            headers: Headers = [("table", table), ("operation", b"READ"), *tail, *message.headers]
            self._send(self._next_refresh_record(), topic, row.table, message, headers)
            keys.append(message.key or b"")
        return keys

    def send_tombstones(self, table: str, keys: Sequence[bytes], origin: Origin, position: Position) -> None:
        self._outbox.extend()
        topic, name = self._topic(table)
        headers: Headers = [("table", name), ("operation", b"DELETE"), *self._tail(origin, position)]
        for key in keys:
            message = self._format.tombstone(key)
            self._outbox.send(self._next_refresh_record(), topic, message.key, None, headers)

    def send_refresh_marker(self, status: str, position: Position, counts: Counter[str]) -> None:
        """Sends BEGIN or END of a refresh, if the settings ask for these records."""
        if self._settings.transaction_topic:
            self._send_marker(self._next_refresh_record(), status, f"snapshot:{position}", counts, self._now_ms())

    def _send_commit(self, events: Sequence[Event[Row]], origin: Origin, now_ms: int) -> None:
        commit = events[0].commit
        position = commit.position
        tail: Headers = [*self._tail(origin, position), ("transaction", b"%d" % commit.transaction)]
        markers, name = self._settings.transaction_topic, f"{commit.transaction}:{position}"
        if markers:
            self._send_marker((position, _BEGIN, 0), "BEGIN", name, Counter(), now_ms)
        for event in events:
            if event.operation is Operation.UPDATE:
                number = 0
                for part in split_key_change(event):
                    number = self._send_event(part, number, origin, tail, now_ms)
            else:
                self._send_event(event, 0, origin, tail, now_ms)
        if markers:
            counts = Counter(event.table for event in events)
            self._send_marker((position, _END, 0), "END", name, counts, now_ms)

    def _send_event(self, event: Event[Row], number: int, origin: Origin, tail: Headers, now_ms: int) -> int:
        """Returns the number of the event's next record. Encodes also what was sent: formats count the events."""
        record: RecordId = (event.commit.position, event.index, number)
        message = self._format.change(event, origin, now_ms)
        operation, table = event.operation, event.data.table
        topic, name = self._topics.get(table) or self._topic(table)
        headers: Headers = [
            ("table", name), ("operation", _OPERATIONS[operation]), ("index", b"%d" % event.index), *tail,
            *message.headers,
        ]  # fmt: skip
        if not self._outbox.knows(record):
            self._send(record, topic, table, message, headers)
        if operation is not Operation.DELETE:
            return number + 1
        record = (event.commit.position, event.index, number + 1)
        if not self._outbox.knows(record):
            self._outbox.send(record, topic, message.key, None, headers[: 3 + len(tail)])
        return number + 2

    def _send(self, record: RecordId, topic: str, table: str, message: Message, headers: Headers) -> None:
        """A record that the topic can't hold is left out and reported: it would block all later ones."""
        key, value = message.key or b"", message.value or b""
        if len(key) + len(value) <= self.max_bytes:
            try:
                self._outbox.send(record, topic, message.key, message.value, headers)
            except MessageSizeTooLargeError:
                self._too_large(table, key)
        else:
            self._too_large(table, key)

    def _send_marker(self, record: RecordId, status: str, name: str, counts: Counter[str], now_ms: int) -> None:
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
        encoded = msgspec.json.encode(value)
        self._outbox.send(record, self._settings.markers_topic, msgspec.json.encode({"id": name}), encoded)

    def _topic(self, table: str) -> tuple[str, bytes]:
        return self._topics.setdefault(table, (self._settings.topic_of(table), table.encode()))

    def _tail(self, origin: Origin, position: Position) -> Headers:
        return [("position", b"%d" % position), ("epoch", b"%d" % origin.epoch)]

    def _next_refresh_record(self) -> RecordId:
        self._refresh_records += 1
        return (-1, self._refresh_records)
