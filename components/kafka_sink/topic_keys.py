"""The keys of the records of topics, in a temporary file: a topic may have more of them than fit in memory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from astha.brokers.kafka import close
from components.kafka_sink.errors import BrokerUnusable, explain
from components.kafka_sink.settings import KafkaSinkSettings

_POLL_MS = 200
_PAGE = 1_000


class TopicKeys:
    """Used by one thread. Closing it removes the file."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # a private file, which SQLite has unlinked already
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute("PRAGMA cache_size=-8192")
        self._database.execute("CREATE TABLE keys (topic TEXT, key BLOB, PRIMARY KEY (topic, key)) WITHOUT ROWID")

    def close(self) -> None:
        self._database.close()

    def add(self, topic: str, keys: Sequence[bytes]) -> None:
        self._change("INSERT OR IGNORE INTO keys VALUES (?, ?)", topic, keys)

    def remove(self, topic: str, keys: Sequence[bytes]) -> None:
        self._change("DELETE FROM keys WHERE topic = ? AND key = ?", topic, keys)

    def pages(self, topic: str) -> Iterator[list[bytes]]:
        last = b""
        query = "SELECT key FROM keys WHERE topic = ? AND key > ? ORDER BY key LIMIT ?"
        while page := [key for (key,) in self._database.execute(query, (topic, last, _PAGE))]:
            yield page
            last = page[-1]

    def _change(self, statement: str, topic: str, keys: Sequence[bytes]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(statement, ((topic, key) for key in keys))
        self._database.execute("COMMIT")


class TopicReader:
    """Reads topics from their beginning to the end that they had when it was created."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        open_consumer: Callable[[], KafkaConsumer],
        partitions: Mapping[str, int],
        interrupted: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._open_consumer = open_consumer
        self._partitions = [TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)]
        self._interrupted = interrupted

    def read(self, keys: TopicKeys, progress: Callable[[int], None]) -> None:
        """Fills `keys`. Raises BrokerUnusable."""
        consumer = self._open_consumer()
        try:
            self._read(consumer, keys, progress)
        except KafkaError as error:
            raise BrokerUnusable(f"topics can't be read: {explain(self._settings, error)}") from error
        finally:
            close(consumer)

    def _read(self, consumer: KafkaConsumer, keys: TopicKeys, progress: Callable[[int], None]) -> None:
        limit_s = max(30.0, 3 * self._settings.request_timeout_s)
        timeout_ms = int(limit_s * 1000)  # without it, kafka-python waits for metadata without a limit
        ends = consumer.end_offsets(self._partitions, timeout_ms=timeout_ms)
        starts = consumer.beginning_offsets(self._partitions, timeout_ms=timeout_ms)
        unread = {partition: end for partition, end in ends.items() if end > starts[partition]}
        if not unread:
            return
        consumer.assign(list(unread))
        consumer.seek_to_beginning()
        last_progress = time.monotonic()
        while unread:
            if self._interrupted() or time.monotonic() - last_progress > limit_s:
                raise BrokerUnusable(f"topics can't be read: no progress for {limit_s:.0f} s at {sorted(unread)[0]}")
            found = consumer.poll(timeout_ms=_POLL_MS)
            for partition, records in found.items():
                _apply(keys, partition.topic, records, ends[partition])
                progress(len(records))
            if found:
                last_progress = time.monotonic()
            done = [partition for partition, end in unread.items() if consumer.position(partition) >= end]
            for partition in done:
                del unread[partition]
                consumer.pause(partition)


def _apply(keys: TopicKeys, topic: str, records: Sequence[Any], end: int) -> None:
    """Takes the key of every record, also of a tombstone: that may be an old one, repeated by a leader that restarted,
    and a reader that recognises repetitions has ignored it. Records after the end are those of another sender.
    """
    keys.add(topic, [record.key for record in records if record.key is not None and record.offset < end])
