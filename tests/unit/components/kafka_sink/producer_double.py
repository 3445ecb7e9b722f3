"""A producer that the test answers for."""

from __future__ import annotations

from kafka.errors import KafkaTimeoutError


class FakeBatch:
    def __init__(self, producer: FakeProducer, topic: str, records: bytes) -> None:
        self.producer = producer
        self.topic = topic
        self.records = records
        self.settled = False
        self.error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        self.settled, self.error = True, error

    def wait(self, timeout_s: float) -> None:
        self.producer.waits += 1
        if self.producer.acknowledges_when_awaited:
            self.finish()


class FakeProducer:
    def __init__(self) -> None:
        self.batch_bytes = 1  # each record is a batch
        self.batches: list[FakeBatch] = []
        self.refuses: Exception | None = None
        self.acknowledges = False
        self.acknowledges_when_awaited = False
        self.waits = 0
        self.closed = False

    @property
    def sent(self) -> list[tuple[str, bytes]]:
        return [(batch.topic, batch.records) for batch in self.batches]

    def forget_partitions(self) -> None:
        return

    def partition(self, topic: str, key: bytes | None) -> int:
        if self.refuses is not None:
            raise self.refuses
        return 0

    def batch(self, topic: str, partition: int, records: bytes, count: int) -> FakeBatch:
        return FakeBatch(self, topic, bytes(records))

    def enqueue(self, batches: list[FakeBatch]) -> None:
        self.batches += batches
        if self.acknowledges:
            for batch in batches:
                batch.finish()

    def close(self, timeout_s: float) -> None:
        self.closed = True
        for batch in self.batches:
            if not batch.settled:
                batch.finish(KafkaTimeoutError("closed"))
