"""kafka-python's producer, given whole batches of encoded records.

Its `send` costs more than all the rest of a delivery: some twenty calls, a future and a lock for each record. So a
batch is encoded here and put where `send` would have collected it. From there on it is kafka-python's: sequence
numbers, compression, checksums, requests, retries, order. `tests/unit/components/kafka_sink/test_kafka_internals.py`
fails if one of the private parts that this relies on changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder

from astha.brokers.kafka import close
from components.kafka_sink.record_encoding import partition_index

_FORMAT = 2
_FULL = 1
"""A batch that is larger than this size is full, and is sent at once."""


class Batch(ProducerBatch):  # type: ignore[misc]  # kafka-python has no types
    """Records of one partition. It is settled when the broker has acknowledged or refused all of them.

    A batch that is too large for its topic is split by kafka-python, which then expects a future for each record: those
    are made only then.
    """

    def __init__(self, partition: TopicPartition, records: MemoryRecordsBuilder) -> None:
        super().__init__(partition, records)
        self._split: list[FutureRecordMetadata] = []

    @property
    def _record_futures(self) -> list[FutureRecordMetadata]:
        if not self._split:
            self._split = [
                FutureRecordMetadata(self.produce_future, number, None, None, -1, -1, -1)
                for number in range(self.record_count)
            ]
        return self._split

    @_record_futures.setter
    def _record_futures(self, futures: list[FutureRecordMetadata]) -> None:
        """The base class sets an empty list."""

    @property
    def settled(self) -> bool:
        if self._split:
            return all(future.is_done for future in self._split)
        return bool(self.produce_future.is_done)

    @property
    def error(self) -> BaseException | None:
        """Why a settled batch was refused, in part or whole."""
        if self._split:
            return next((future.exception for future in self._split if future.failed()), None)
        _offset, _time, errors = self.produce_future.value
        return None if errors is None else errors(0)

    def wait(self, timeout_s: float) -> None:
        """Returns when it is settled, after the timeout, or when it was split."""
        if not self._split:
            self.produce_future.wait(timeout_s)
            return
        pending = next((future for future in self._split if not future.is_done), None)
        if pending is not None:
            with suppress(KafkaError):
                pending.get(timeout_s)


class BatchProducer:
    """Used by one thread."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        self._partitions: dict[str, list[int]] = {}

    @property
    def batch_bytes(self) -> int:
        return int(self._producer.config["batch_size"])

    def forget_partitions(self) -> None:
        """A topic may have got more of them: they are looked up again."""
        self._partitions.clear()

    def partition(self, topic: str, key: bytes | None) -> int:
        """Returns the partition of a key; of records without a key, the first. Raises KafkaError if the topic is not
        known, after a while.
        """
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._partitions[topic] = sorted(self._producer.partitions_for(topic))
        return partitions[0 if key is None else partition_index(key, len(partitions))]

    def batch(self, topic: str, partition: int, records: bytearray, count: int) -> Batch:
        """Returns a batch of so many encoded records."""
        now_ms = int(time.time() * 1000)
        compression = self._producer._accumulator.config["compression_attrs"]
        wrapped = MemoryRecordsBuilder(_FORMAT, compression, _FULL)
        wrapped._next_offset = count
        builder = wrapped._builder
        builder._buffer += records
        builder._first_timestamp = builder._max_timestamp = now_ms
        builder._num_records, builder._last_offset = count, count - 1
        return Batch(TopicPartition(topic, partition), wrapped)

    def enqueue(self, batches: Sequence[Batch]) -> None:
        """Sends them soon, in this order. Never blocks for long."""
        accumulator = self._producer._accumulator
        for batch in batches:
            with accumulator._tp_lock(batch.topic_partition):
                accumulator._batches[batch.topic_partition].append(batch)
                accumulator._incomplete.add(batch)
        self._producer._sender.wakeup()

    def close(self, timeout_s: float) -> None:
        """Batches that are not acknowledged in time are refused."""
        close(self._producer, timeout_s)
