"""Batches in kafka-python's accumulator, without a broker: what is read back, and batches that are split."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.record.memory_records import MemoryRecords

from components.kafka_sink.batch_producer import Batch, BatchProducer
from components.kafka_sink.record_encoding import encode_headers, encode_record

LZ4 = 3
PARTITION = TopicPartition("t", 1)


class FakeProducer:
    def __init__(self) -> None:
        self._accumulator = RecordAccumulator(compression_attrs=LZ4, batch_size=1 << 18)
        self._sender = self
        self.woken = 0

    def wakeup(self) -> None:
        self.woken += 1

    def partitions_for(self, topic: str) -> set[int]:
        return {2, 0, 1}


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


@pytest.fixture
def batches(producer: FakeProducer) -> BatchProducer:
    return BatchProducer(cast("KafkaProducer", producer))


def ten_records(batches: BatchProducer) -> Batch:
    headers = encode_headers([("table", b"topics")])
    encoded = bytearray().join(encode_record(number, b"key", b"value" * 10, headers) for number in range(10))
    return batches.batch("t", 1, encoded, 10)


def in_accumulator(producer: FakeProducer) -> list[Any]:
    return list(producer._accumulator._batches[PARTITION])


def drained(batch: Any) -> list[Any]:
    """The records that would be sent, as a consumer reads them."""
    batch.records.set_producer_state(7, 0, 100, False)
    batch.records.close()
    (found,) = MemoryRecords(batch.records.buffer())
    assert found.validate_crc()
    assert (found.producer_id, found.base_sequence, found.compression_type) == (7, 100, LZ4)
    return list(found)


def test_a_batch_is_read_back(producer: FakeProducer, batches: BatchProducer) -> None:
    batch = ten_records(batches)
    batches.enqueue([batch])
    assert in_accumulator(producer) == [batch]
    assert batch.records.is_full()
    assert producer.woken == 1
    records = drained(batch)
    assert [record.offset for record in records] == list(range(10))
    assert {(record.key, record.value) for record in records} == {(b"key", b"value" * 10)}
    assert {record.headers[0] for record in records} == {("table", b"topics")}
    assert {record.timestamp for record in records} == {records[0].timestamp}


def test_an_acknowledged_batch_has_no_error(batches: BatchProducer) -> None:
    batch = ten_records(batches)
    batch.complete(5, -1)
    batch.wait(60)
    assert batch.settled
    assert batch.error is None


def test_a_refused_batch_says_why(batches: BatchProducer) -> None:
    batch = ten_records(batches)
    batch.abort(MessageSizeTooLargeError("too large"))
    assert batch.settled
    assert isinstance(batch.error, MessageSizeTooLargeError)


@pytest.mark.parametrize("refused", [False, True], ids=["acknowledged", "refused"])
def test_a_split_batch_is_settled_with_its_last_part(
    producer: FakeProducer, batches: BatchProducer, refused: bool
) -> None:
    """Splits it, then splits the first part once more."""
    batch = ten_records(batches)
    drained(batch)
    producer._accumulator.split_and_reenqueue(batch)
    first, _second = in_accumulator(producer)
    drained(producer._accumulator._batches[PARTITION].popleft())
    producer._accumulator.split_and_reenqueue(first)
    parts = in_accumulator(producer)
    assert [part.record_count for part in parts] == [3, 2, 5]
    for part in parts[:2]:
        batch.wait(0.001)
        assert not batch.settled
        part.complete(5, -1)
    if refused:
        parts[2].abort(MessageSizeTooLargeError("too large"))
    else:
        parts[2].complete(8, -1)
    batch.wait(60)
    assert batch.settled
    assert isinstance(batch.error, MessageSizeTooLargeError) is refused


def test_keys_choose_the_partition(batches: BatchProducer) -> None:
    assert batches.partition("t", None) == 0
    chosen = {batches.partition("t", b"%d" % number) for number in range(50)}
    assert chosen == {0, 1, 2}
