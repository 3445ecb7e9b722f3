"""What the sink publishes, as MQTT messages: changes of rows, records for followers, notices of a refresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from astha.events.traceparent import HEADER as TRACE_HEADER
from astha.subscribers import Event, LoopClock, Operation, Position, Row
from components.lib.change_formats import ChangeFormat, Message, Origin, split_key_change
from components.lib.transaction_stream import StreamMessage
from components.mqtt_sink.link import Link, Publication
from components.mqtt_sink.properties import pack
from components.mqtt_sink.topics import Topics

_JSON = "application/json"
_OPERATIONS: Mapping[Operation, str] = {operation: operation.value.lower() for operation in Operation}

UserProperties = Sequence[tuple[str, bytes]]


class ChangeMessages:
    """Messages of changed rows, in one format."""

    def __init__(self, format_: ChangeFormat, topics: Topics, origin: Origin, clock: LoopClock) -> None:
        self._format = format_
        self._topics = topics
        self._origin = origin
        self._clock = clock
        self._epoch = b"%d" % origin.epoch
        self.oversized = 0  # messages without payload

    def of(self, event: Event[Row], link: Link, trace: bytes | None = None) -> list[Publication]:
        """Returns one message, or two for an update that changed the primary key."""
        now_ms = self._clock.now_ms()
        messages = []
        for part in split_key_change(event):
            operation = _OPERATIONS[part.operation]
            named: UserProperties = (
                ("table", part.table.encode()),
                ("operation", operation.encode()),
                ("position", b"%d" % part.position),
                ("transaction", b"%d" % part.transaction),
                ("index", b"%d" % part.index),
                ("epoch", self._epoch),
                *_traced(trace),
            )
            encoded = self._format.change(part, self._origin, now_ms)
            topic = self._topics.change(operation, part.data)
            messages.append(self._publication(topic, encoded, named, link))
        return messages

    def read(
        self, row: Row, position: Position, refresh: str, last: bool, link: Link, trace: bytes | None = None
    ) -> Publication:
        """Returns the message of a row that a refresh has read."""
        named = (
            ("table", row.table.encode()),
            ("operation", b"read"),
            ("position", b"%d" % position),
            ("epoch", self._epoch),
            ("refresh", refresh.encode()),
            *_traced(trace),
        )
        encoded = self._format.snapshot_row(row, position, self._origin, self._clock.now_ms(), last)
        return self._publication(self._topics.change("read", row), encoded, named, link)

    def _publication(self, topic: str, encoded: Message, named: UserProperties, link: Link) -> Publication:
        """A row that is too large for the broker is announced without payload: the reader finds it by its key."""
        payload = encoded.value or b""
        if encoded.headers:
            given = {name for name, _ in encoded.headers}
            named = (*encoded.headers, *(pair for pair in named if pair[0] not in given))
        properties = pack(self._format.content_type, named)
        if len(payload) > link.payload_limit(topic, len(properties.pack())):
            self.oversized += 1
            named = (*named, ("omitted", b"payload of %d bytes" % len(payload)))
            return Publication(topic, b"", pack(self._format.content_type, named))
        return Publication(topic, payload, properties)


def record_publication(topics: Topics, message: StreamMessage, epoch: int, trace: bytes | None = None) -> Publication:
    """Returns the message of a record for followers."""
    named = (
        ("kind", message.kind.encode()),
        ("position", b"%d" % message.position),
        ("previous", b"%d" % message.previous),
        ("epoch", b"%d" % epoch),
        *_traced(trace),
    )
    return Publication(topics.transactions, message.payload, pack(_JSON, named))


def _traced(trace: bytes | None) -> UserProperties:
    return () if trace is None else ((TRACE_HEADER, trace),)


def refresh_publication(topics: Topics, state: str, refresh: str, content: Mapping[str, object]) -> Publication:
    """Returns the message that begins or ends a refresh."""
    payload = msgspec.json.encode({"state": state, "refresh": refresh, **content})
    named = (("state", state.encode()), ("refresh", refresh.encode()))
    return Publication(topics.refresh, payload, pack(_JSON, named))


def retained_publication(topic: str, content: Mapping[str, object]) -> Publication:
    return Publication(topic, msgspec.json.encode(content), pack(_JSON, ()), retain=True)
