"""Reads Kafka topics in tests, as a consumer without Astha code does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from registry.models import PUBLISHED, Row

_KINDS = {kind.table: kind for kind in PUBLISHED}


def read_topic(address: str, topic: str) -> list[Any]:
    """Returns all records of a topic, in order per partition; none if there is no such topic."""
    with KafkaConsumer(
        bootstrap_servers=address, group_id=None, auto_offset_reset="earliest", allow_auto_create_topics=False
    ) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(partitions) if partitions else {}
        consumer.assign(partitions)
        found: list[Any] = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=200).values():
                found += [record for record in records if record.offset < ends[TopicPartition(topic, record.partition)]]
        return found


def headers_of(record: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


def materialised(address: str, prefix: str, tables: Iterable[str]) -> dict[str, dict[tuple[object, ...], Row]]:
    """Returns the rows that a consumer of layout `tables` in Debezium's format has in the end, as `rows_of` does."""
    found: dict[str, dict[tuple[object, ...], Row]] = {}
    for table in tables:
        kind = _KINDS[table]
        rows: dict[bytes, Row] = {}
        for record in read_topic(address, f"{prefix}.{table}"):
            if record.value is None:
                rows.pop(record.key, None)
                continue
            after = msgspec.json.decode(record.value)["after"]
            if after is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = msgspec.convert(after, kind)
        found[table] = {tuple(getattr(row, name) for name in kind.key): row for row in rows.values()}
    return found


def delete_topic(address: str, topic: str) -> None:
    with KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.delete_topics([topic])


def create_topic(address: str, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": named}
    with KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.create_topics({topic: options}, wait_for_metadata=True)
