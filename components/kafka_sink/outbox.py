"""Records on their way to the broker: collected or sent, and not yet known to be acknowledged."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from kafka.errors import KafkaError, MessageSizeTooLargeError

from components.kafka_sink.batch_producer import Batch, BatchProducer
from components.kafka_sink.errors import GaveWay, NotAcknowledged, SendFailed, explain
from components.kafka_sink.record_encoding import NO_HEADERS, encode_record
from components.kafka_sink.settings import KafkaSinkSettings

RecordId: TypeAlias = tuple[int, ...]
"""Identifies a record across retries: position, index within the commit, number within the event. The records of a
refresh have a negative first number: they are not retried one by one.
"""

_SLICE_S = 0.2
_OVERHEAD_BYTES = 100


class _Collected:
    """Encoded records of one partition that are not sent yet."""

    __slots__ = ("encoded", "partition", "payload_bytes", "records", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.encoded = bytearray()
        self.records: list[RecordId] = []
        self.payload_bytes = 0  # of keys and values

    @property
    def size(self) -> int:
        return self.payload_bytes + _OVERHEAD_BYTES * len(self.records)


class _Sent(msgspec.Struct, gc=False):
    batch: Batch
    topic: str
    records: list[RecordId]
    size: int
    payload_bytes: int


class Outbox:
    """Owned by one thread, except for `counters`.

    A record that was given to it stays with its producer until it is acknowledged, also if a delivery gives up waiting:
    the next attempt waits for it instead of sending it again. So the producer alone retries, which keeps the order of
    each partition and duplicates nothing. Only an error that a producer can't recover from closes it; then the next
    attempt sends, with a new producer, what was not acknowledged.
    """

    def __init__(
        self, settings: KafkaSinkSettings, open_producer: Callable[[], BatchProducer], interrupted: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._open_producer = open_producer
        self._interrupted = interrupted
        self._producer: BatchProducer | None = None
        self._max_pending_bytes = settings.max_in_flight_bytes
        self._max_record_bytes = settings.max_request_bytes
        self._batch_bytes = 0
        self._collected: dict[tuple[str, int], _Collected] = {}
        self._in_flight: deque[_Sent] = deque()
        self._pending_bytes = 0  # collected or in flight
        self._acknowledged: set[RecordId] = set()
        self._known: set[RecordId] = set()  # records of earlier attempts
        self._deadline = 0.0
        self.counters: Counter[str] = Counter()

    def begin(self, submitted: float | None = None) -> None:
        """Starts an attempt: waits in it end after the acknowledgement timeout. That includes the time since
        `submitted`, on the monotonic clock, in which it waited for its turn.
        """
        self.extend(submitted)
        producer = self._producer or self._connect()
        producer.forget_partitions()
        self._known = self._acknowledged.copy()
        self._known.update(*(sent.records for sent in self._in_flight))
        self._known.update(*(collected.records for collected in self._collected.values()))

    def extend(self, since: float | None = None) -> None:
        """Restarts the timeout, for work in many parts."""
        self._deadline = (time.monotonic() if since is None else since) + self._settings.acknowledge_timeout_s

    def knows(self, record: RecordId) -> bool:
        """Whether an earlier attempt sent this record: it is on its way, or acknowledged."""
        return record in self._known

    def send(
        self, record: RecordId, topic: str, key: bytes | None, value: bytes | None, headers: bytes = NO_HEADERS
    ) -> None:
        """Sends it with the next batch of its partition: when that is full, or by `wait`. Waits while too many bytes
        are pending. Raises MessageSizeTooLargeError if the record is larger than `max_request_bytes`; other records can
        still be sent.
        """
        payload_bytes = (len(key) if key else 0) + (len(value) if value else 0)
        pending_bytes = payload_bytes + _OVERHEAD_BYTES
        if self._pending_bytes + pending_bytes > self._max_pending_bytes:
            self._make_room(pending_bytes)
        size = pending_bytes + len(headers)
        if size > self._max_record_bytes:
            raise MessageSizeTooLargeError(f"a record of {size} bytes")
        producer = self._producer or self._connect()
        try:
            partition = producer.partition(topic, key)
        except KafkaError as error:
            raise NotAcknowledged(f"nothing can be sent: {explain(self._settings, error, topic)}") from error
        place = (topic, partition)
        collected = self._collected.get(place)
        if collected is not None and len(collected.encoded) + size > self._batch_bytes:
            self._enqueue(producer, [collected])
            collected = None
        if collected is None:
            collected = self._collected[place] = _Collected(topic, partition)
        records = collected.records
        collected.encoded += encode_record(len(records), key, value, headers)
        records.append(record)
        collected.payload_bytes += payload_bytes
        self._pending_bytes += pending_bytes

    def wait(self, gives_way: Callable[[], bool] = lambda: False) -> None:
        """Returns when everything sent is acknowledged. Raises NotAcknowledged or SendFailed; GaveWay if `gives_way`
        becomes true meanwhile.
        """
        self._enqueue_all()
        while self._in_flight:
            self._wait_for_first(gives_way)

    @property
    def holds_commits(self) -> bool:
        """Whether records of commits are on their way, not only heartbeats and those of a refresh."""
        pending = [one.records for one in self._in_flight] + [one.records for one in self._collected.values()]
        return any(record[0] >= 0 for records in pending for record in records)

    def forget(self) -> None:
        """The records so far will not be sent again: no retry of them follows."""
        self._acknowledged.clear()
        self._known.clear()

    def abandon(self) -> None:
        """Closes the producer. What it had not sent yet is never sent, and what was on its way may still arrive."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s=0.1)
        self._keep_acknowledged()

    def close(self, timeout_s: float) -> None:
        """Sends what is collected, and closes the producer."""
        if self._producer is not None:
            self._enqueue_all()
            self._producer.close(timeout_s)
        self._producer = None
        self._drop_pending()
        self._acknowledged.clear()

    def _connect(self) -> BatchProducer:
        producer = self._producer = self._open_producer()
        self._batch_bytes = producer.batch_bytes
        return producer

    def _enqueue_all(self) -> None:
        if self._collected:
            self._enqueue(self._producer or self._connect(), list(self._collected.values()))

    def _enqueue(self, producer: BatchProducer, collected: list[_Collected]) -> None:
        batches = [producer.batch(one.topic, one.partition, one.encoded, len(one.records)) for one in collected]
        for one, batch in zip(collected, batches, strict=True):
            del self._collected[one.topic, one.partition]
            self._in_flight.append(_Sent(batch, one.topic, one.records, one.size, one.payload_bytes))
        producer.enqueue(batches)

    def _make_room(self, size: int) -> None:
        self._enqueue_all()
        while self._in_flight and self._pending_bytes + size > self._max_pending_bytes // 2:
            self._wait_for_first()

    def _wait_for_first(self, gives_way: Callable[[], bool] = lambda: False) -> None:
        sent = self._in_flight[0]
        batch = sent.batch
        while not batch.settled:
            if self._interrupted() or time.monotonic() > self._deadline:
                raise NotAcknowledged(
                    f"{sum(len(one.records) for one in self._in_flight)} records are not acknowledged after "
                    f"{self._settings.acknowledge_timeout_s:g} s, the oldest is for topic {sent.topic}"
                )
            batch.wait(_SLICE_S)
            if not batch.settled and gives_way():
                raise GaveWay("another call waits")
        if batch.error is not None:
            self._fail(sent, batch.error)
        self._in_flight.popleft()
        self._note_acknowledged(sent)
        self._pending_bytes -= sent.size
        self.counters["records"] += len(sent.records)
        self.counters["bytes"] += sent.payload_bytes

    def _note_acknowledged(self, sent: _Sent) -> None:
        self._acknowledged.update(record for record in sent.records if record[0] >= 0)

    def _fail(self, sent: _Sent, error: BaseException) -> None:
        self.counters["producer_failures"] += 1
        self.abandon()
        raise SendFailed(explain(self._settings, error, sent.topic)) from error

    def _keep_acknowledged(self) -> None:
        """Records after a lost one of the same topic are sent again, so that the last record of a key is the newest."""
        lost: set[str] = set()
        for sent in self._in_flight:
            if sent.topic not in lost and sent.batch.settled and sent.batch.error is None:
                self._note_acknowledged(sent)
            else:
                lost.add(sent.topic)
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._in_flight.clear()
        self._collected.clear()
        self._pending_bytes = 0
