"""The same records through kafka-python: the fastest settings that were found, with acks=all."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

_BATCH_BYTES = 1 << 18
_FETCH_BYTES = 8 << 20


class KafkaPeer:
    """Blocks: call it in a thread."""

    def __init__(self, address: str, partitions: int, records: Sequence[bytes]) -> None:
        self._address = address
        self._partitions = partitions
        self._records = records

    def produce(self, topic: str) -> float:
        """Returns the seconds until all records are acknowledged."""
        admin = KafkaAdminClient(bootstrap_servers=self._address)
        admin.create_topics([NewTopic(topic, num_partitions=self._partitions, replication_factor=1)])
        admin.close()
        producer = KafkaProducer(
            bootstrap_servers=self._address, acks="all", compression_type="lz4", linger_ms=20, batch_size=_BATCH_BYTES
        )
        producer.partitions_for(topic)
        started = perf_counter()
        for number, record in enumerate(self._records):
            producer.send(topic, value=record, partition=number % self._partitions)
        producer.flush()
        seconds = perf_counter() - started
        producer.close()
        return seconds

    def consume(self, topic: str) -> float:
        """Returns the seconds until all records are read."""
        consumer = KafkaConsumer(
            bootstrap_servers=self._address, auto_offset_reset="earliest", enable_auto_commit=False,
            fetch_max_bytes=8 * _FETCH_BYTES, max_partition_fetch_bytes=_FETCH_BYTES, max_poll_records=5_000,
        )  # fmt: skip
        consumer.assign([TopicPartition(topic, number) for number in range(self._partitions)])
        started = perf_counter()
        seen = size = 0
        while seen < len(self._records):
            for records in consumer.poll(timeout_ms=1_000).values():
                for record in records:
                    seen += 1
                    size += len(record.value)
        seconds = perf_counter() - started
        assert size == sum(map(len, self._records)), "not the records that were written"
        consumer.close()
        return seconds
