"""Records on their way to the broker: sent, and not yet known to be acknowledged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError

from components.kafka_sink.client import close
from components.kafka_sink.errors import NotAcknowledged, SendFailed, explain
from components.kafka_sink.settings import KafkaSinkSettings

RecordId: TypeAlias = tuple[int, ...]
"""Identifies a record across retries: position, index within the commit, number within the event. The records of a
refresh have a negative first number: they are not retried one by one.
"""

_SLICE_S = 0.2
_OVERHEAD_BYTES = 100


class _Sent(msgspec.Struct, gc=False):
    future: Any
    topic: str
    size: int


class Outbox:
    """Owned by one thread, except for `counters`.

    A record that was sent stays with its producer until it is acknowledged, also if a delivery gives up waiting: the
    next attempt waits for it instead of sending it again. So the producer alone retries, which keeps the order of each
    partition and duplicates nothing. Only an error that a producer can't recover from closes it; then the next attempt
    sends, with a new producer, what was not acknowledged.
    """

    def __init__(
        self, settings: KafkaSinkSettings, open_producer: Callable[[], KafkaProducer], interrupted: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._open_producer = open_producer
        self._interrupted = interrupted
        self._producer: KafkaProducer | None = None
        self._in_flight: dict[RecordId, _Sent] = {}
        self._in_flight_bytes = 0
        self._acknowledged: set[RecordId] = set()
        self._deadline = 0.0
        self._repeats = False  # whether this attempt may repeat records of an earlier one
        self.counters: Counter[str] = Counter()

    def begin(self) -> None:
        """Starts an attempt: waits in it end after the acknowledgement timeout."""
        self.extend()
        self._repeats = bool(self._in_flight or self._acknowledged)
        if self._producer is None:
            self._connect()

    def extend(self) -> None:
        """Restarts the timeout, for work in many parts."""
        self._deadline = time.monotonic() + self._settings.acknowledge_timeout_s

    def knows(self, record: RecordId) -> bool:
        """Whether this record was sent: it is on its way, or acknowledged."""
        return self._repeats and (record in self._in_flight or record in self._acknowledged)

    def send(
        self,
        record: RecordId,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Waits while too many bytes are in flight. Raises MessageSizeTooLargeError if the record is larger than
        `max_request_bytes`; other records can still be sent.
        """
        size = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        if self._in_flight_bytes + size > self._settings.max_in_flight_bytes:
            self._make_room(size)
        producer = self._producer or self._connect()
        try:
            future = producer.send(topic, value=value, key=key, headers=headers)
        except MessageSizeTooLargeError:
            raise
        except KafkaError as error:
            raise NotAcknowledged(f"nothing can be sent: {explain(self._settings, error, topic)}") from error
        self._in_flight[record] = _Sent(future, topic, size)
        self._in_flight_bytes += size

    def wait(self) -> None:
        """Returns when everything sent is acknowledged. Raises NotAcknowledged or SendFailed."""
        self._flush()
        for record, sent in list(self._in_flight.items()):
            self._wait_for(record, sent)

    def forget(self) -> None:
        """The records so far will not be sent again: no retry of them follows."""
        self._acknowledged.clear()

    def abandon(self) -> None:
        """Closes the producer. What it had not sent yet is never sent, and what was on its way may still arrive."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close(producer, timeout_s=0.1)
        self._keep_acknowledged()

    def close(self, timeout_s: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close(producer, timeout_s)
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._acknowledged.clear()

    def _flush(self) -> None:
        """Makes the producer send what it holds back to fill its batches, and waits for most of it."""
        last = next(reversed(self._in_flight.values()), None)
        while self._producer is not None and last is not None and not last.future.is_done:
            try:
                self._producer.flush(_SLICE_S)
                return
            except KafkaError:  # a timeout, or a batch that was split meanwhile
                if self._interrupted() or time.monotonic() > self._deadline:
                    return

    def _connect(self) -> KafkaProducer:
        self._producer = self._open_producer()
        return self._producer

    def _make_room(self, size: int) -> None:
        for record, sent in list(self._in_flight.items()):
            if self._in_flight_bytes + size <= self._settings.max_in_flight_bytes // 2:
                return
            self._wait_for(record, sent)

    def _wait_for(self, record: RecordId, sent: _Sent) -> None:
        future = sent.future
        while not future.is_done:
            if self._interrupted() or time.monotonic() > self._deadline:
                raise NotAcknowledged(
                    f"{len(self._in_flight)} records are not acknowledged after "
                    f"{self._settings.acknowledge_timeout_s:g} s, the oldest is for topic {sent.topic}"
                )
            try:
                future.get(_SLICE_S)
            except KafkaError:
                continue
        if not future.succeeded():
            self._fail(sent)
        del self._in_flight[record]
        if record[0] >= 0:
            self._acknowledged.add(record)
        self._in_flight_bytes -= sent.size
        self.counters["records"] += 1
        self.counters["bytes"] += sent.size - _OVERHEAD_BYTES

    def _fail(self, sent: _Sent) -> None:
        error = sent.future.exception
        self.counters["producer_failures"] += 1
        self.abandon()
        raise SendFailed(explain(self._settings, error, sent.topic)) from error

    def _keep_acknowledged(self) -> None:
        """Records after a lost one of the same topic are sent again, so that the last record of a key is the newest."""
        lost: set[str] = set()
        for record, sent in self._in_flight.items():
            if sent.topic not in lost and sent.future.is_done and sent.future.succeeded():
                self._acknowledged.add(record)
            else:
                lost.add(sent.topic)
        self._in_flight.clear()
        self._in_flight_bytes = 0
