"""Reads one partition in a thread of its own: kafka-python blocks, and must not touch the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from kafka.structs import OffsetAndMetadata

from astha.brokers.kafka import close, describe, known_partitions, may_not_use
from astha.errors import ConfigError, SourceLost
from astha.events.traceparent import HEADER, TraceParent, read_traceparent
from astha.sources.follower import StreamPayload
from astha.sources.kafka.offsets import Resumption
from astha.sources.kafka.topic import BrokerRefuses, KafkaTopic

log = structlog.get_logger(__name__)

_POLL_MS = 100
_CHUNKS = 2
"""Chunks that may wait for the event loop. Each is at most about one fetch."""

_COMMIT_EVERY_S = 1.0
_PROBE_AFTER_S = 3.0
"""Without a record for this long, heartbeats are missing: the broker is asked whether it still responds."""

_PROBE_MS = 2_000
_REOPEN_AFTER_S = 15.0
"""A consumer that gets nothing for this long is replaced, for example after its topic was deleted and created again."""

_CLOSE_MS = 2_000


class Chunk(msgspec.Struct, frozen=True):
    """Records. `reopened`: records before it may be missing. `at_end`: nothing follows yet."""

    records: list[StreamPayload]
    reopened: bool = False
    at_end: bool = False


Start = Callable[[Resumption | None], int | None]
"""Gets what is committed, returns the offset to begin at; None for the end of the topic."""


class ReaderThread:
    """Delivers chunks to the loop in which it was created, in order, and waits while the loop does not take them."""

    def __init__(self, topic: KafkaTopic, client_id: str, group: str | None, start: Start) -> None:
        self._topic = topic
        self._client_id = client_id
        self._group = group
        self._start = start
        self._partition = TopicPartition(topic.address.name, 0)
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_CHUNKS)
        self._chunks: deque[Chunk] = deque()  # touched only in the loop
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._next: int | None = None
        self._to_commit: Resumption | None = None
        self._committed: int | None = None
        self._commit_at = 0.0
        self.failure: str | None = "connecting"
        self.assigned = False  # it was connected once
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)
        self._thread.start()

    async def next(self) -> Chunk | None:
        """Returns None after `stop`. Raises ConfigError if the topic or the settings can't be used."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._stopping.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        self._room.release()
        return self._chunks.popleft()

    def commit(self, resumption: Resumption) -> None:
        """Commits it soon. Never blocks."""
        self._to_commit = resumption

    async def stop(self) -> None:
        """Commits what is left to commit, and closes the connection; waits a few seconds at most."""
        self._stopping.set()
        self._arrived.set()
        await asyncio.to_thread(self._thread.join, _CLOSE_MS / 1000 * 3)

    # -- in the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._read()
                failures = 0
            except (SourceLost, KafkaError, OSError) as error:
                failures = 0 if self.failure is None else failures + 1
                if isinstance(error, BrokerRefuses) and not self.assigned:
                    self._fail(ConfigError(str(error)))
                    return
                self._note_failure(str(error) if isinstance(error, SourceLost) else describe(error))
                self._stopping.wait(min(0.1 * 2 ** min(failures, 6), 5.0))
            except BaseException as error:
                self._fail(error)
                return

    def _read(self) -> None:
        """Connects and reads until the connection can't be used any more, or `stop`."""
        consumer = self._topic.consumer(self._client_id, self._group)
        try:
            self._assign(consumer)
            self._poll(consumer)
        except AuthorizationError as error:
            raise BrokerRefuses(
                f"not authorised: allow {self._topic.connection.principal} to read topic {self._partition.topic} and "
                f"group {self._group}"
            ) from error
        finally:
            if self._stopping.is_set():
                self._commit_last(consumer)
            close(consumer, _CLOSE_MS / 1000)

    def _assign(self, consumer: KafkaConsumer) -> None:
        topic = self._partition.topic
        consumer.assign([self._partition])
        partitions = known_partitions(consumer, topic) or self._look_up(consumer)
        if not partitions:
            raise SourceLost(
                f"there is no topic {topic}: start the leader, with a Kafka sink of layout `transactions` that sends "
                "to it, or correct source.url"
            )
        if len(partitions) > 1:
            raise ConfigError(
                f"topic {topic} has {len(partitions)} partitions, so its records have no order: name the topic of a "
                "sink with layout `transactions`, which has one"
            )
        timeout_ms = int(self._topic.settings.request_timeout_s * 1000)
        if not self.assigned:
            committed = None
            if self._group is not None:
                committed = consumer.committed(self._partition, metadata=True, timeout_ms=timeout_ms)
            found = None if committed is None else Resumption.from_metadata(committed.metadata or "", committed.offset)
            self._next = self._start(found)
        if self._next is None:
            self._next = consumer.end_offsets([self._partition], timeout_ms=timeout_ms)[self._partition]
        consumer.seek(self._partition, self._next)
        if self.assigned:
            self._deliver(Chunk([], reopened=True))
        self.assigned = True
        if self.failure not in (None, "connecting"):
            log.info("source connected again", topic=topic)
        self.failure = None

    def _look_up(self, consumer: KafkaConsumer) -> set[int]:
        """Returns the topic's partitions, if it exists. Raises if it may not be read: kafka-python reports it like one
        that does not exist. Its `partitions_for_topic` would wait for metadata without a limit, for good if they are
        not refreshed any more, and this thread with it.
        """
        with suppress(KafkaTimeoutError):
            consumer.end_offsets([self._partition], timeout_ms=_PROBE_MS)
        if may_not_use(consumer, self._partition.topic):
            raise TopicAuthorizationFailedError(self._partition.topic)
        return known_partitions(consumer, self._partition.topic)

    def _poll(self, consumer: KafkaConsumer) -> None:
        heard = probed = time.monotonic()
        while not self._stopping.is_set():
            records = self._polled(consumer)
            now = time.monotonic()
            if records:
                heard = now
                self.failure = None
                self._next = records[-1][0] + 1
                highwater = consumer.highwater(self._partition)
                self._deliver(Chunk(records, at_end=highwater is None or self._next >= highwater))
            elif now - heard > _REOPEN_AFTER_S:
                return
            elif now - max(heard, probed) > _PROBE_AFTER_S:
                self._probe(consumer)
                probed = time.monotonic()
            self._commit(consumer)

    def _polled(self, consumer: KafkaConsumer) -> list[StreamPayload]:
        try:
            found = consumer.poll(timeout_ms=_POLL_MS)
        except (OffsetOutOfRangeError, LogTruncationError):
            consumer.seek_to_beginning(self._partition)  # the records themselves say whether some are missing
            return []
        return [
            (record.offset, record.value or b"", _trace_of(record.headers)) for record in found.get(self._partition, ())
        ]

    def _probe(self, consumer: KafkaConsumer) -> None:
        """Raises SourceLost if the broker does not respond."""
        try:
            end = consumer.end_offsets([self._partition], timeout_ms=_PROBE_MS)[self._partition]
        except KafkaTimeoutError as error:
            raise SourceLost(f"the broker does not respond: {describe(error)}") from error
        if self._next is not None and end < self._next:
            consumer.seek_to_beginning(self._partition)  # the topic was truncated or created again
            self._next = 0

    def _commit(self, consumer: KafkaConsumer) -> None:
        wanted, now = self._to_commit, time.monotonic()
        if wanted is None or wanted.offset == self._committed or now < self._commit_at or self._group is None:
            return
        self._commit_at = now + _COMMIT_EVERY_S
        consumer.commit_async(self._offsets(wanted), callback=lambda _offsets, error: self._note_commit(wanted, error))

    def _commit_last(self, consumer: KafkaConsumer) -> None:
        wanted = self._to_commit
        if wanted is not None and wanted.offset != self._committed and self._group is not None:
            try:
                consumer.commit(self._offsets(wanted), timeout_ms=_CLOSE_MS)
            except KafkaError as error:
                log.info("offset not committed at the end; some records are read again", error=describe(error))

    def _offsets(self, wanted: Resumption) -> dict[TopicPartition, OffsetAndMetadata]:
        return {self._partition: OffsetAndMetadata(wanted.offset, wanted.to_metadata(), -1)}

    def _note_commit(self, wanted: Resumption, result: object) -> None:
        if isinstance(result, Exception):
            log.info("offset not committed, will be retried", error=describe(result))
        else:
            self._committed = wanted.offset

    def _deliver(self, chunk: Chunk) -> None:
        while not self._room.acquire(timeout=0.2):
            if self._stopping.is_set():
                return
        self._call(self._chunks.append, chunk)

    def _fail(self, error: BaseException) -> None:
        def set_error() -> None:
            self._error = error

        self.failure = str(error)
        self._call(set_error)

    def _call(self, change: Callable[..., None], *arguments: object) -> None:
        def apply() -> None:
            change(*arguments)
            self._arrived.set()

        try:
            self._loop.call_soon_threadsafe(apply)
        except RuntimeError:  # the loop is closed
            self._stopping.set()

    def _note_failure(self, reason: str) -> None:
        if self.failure != reason:
            log.warning("source can't be read, retrying", source=self._topic.address.shown, reason=reason)
        self.failure = reason


def _trace_of(headers: Iterable[tuple[str, bytes | None]]) -> TraceParent | None:
    for name, value in headers:
        if name == HEADER and value is not None:
            return read_traceparent(value)
    return None
