"""Topics and partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from registry import validation
from registry.errors import AlreadyExists, NotFound
from registry.json_text import JsonValue
from registry.models import (
    ConsumerGroup,
    ConsumerOffset,
    GroupLease,
    Partition,
    PartitionLease,
    ProducerSequence,
    Segment,
    Topic,
)
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.segment_objects import DynamoSegmentObjects
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.topics import MAX_PARTITIONS, partition_name, topic_config


class DynamoTopics(DynamoSegmentObjects):
    async def create_topic(
        self,
        name: str,
        partition_count: int,
        *,
        retention_ms: int | None = None,
        config: Mapping[str, JsonValue] | None = None,
    ) -> Topic:
        validation.name("topic", name)
        validation.integer("partition_count", partition_count, 1, MAX_PARTITIONS)
        validation.optional("retention_ms", retention_ms, validation.integer)
        text = topic_config(config)

        async def change(tx: Transaction) -> Topic:
            if await tx.get(Topic, name) is not None:
                raise AlreadyExists(f"topic {name!r} exists")
            topic = tx.insert(Topic(name, partition_count, retention_ms, text, tx.now, tx.now))
            for number in range(partition_count):
                tx.insert(Partition(name, number, 0, tx.now, tx.now))
            return topic

        return await self._transact(change)

    async def delete_topic(self, name: str) -> None:
        validation.name("topic", name)

        async def change(tx: Transaction) -> None:
            topic = await tx.get(Topic, name)
            if topic is None:
                raise NotFound(f"topic {name!r} does not exist")
            tx.delete(topic)
            gone: Counter[tuple[str, str]] = Counter()
            for partition in await tx.rows(Partition, name):
                tx.delete(partition)
                for segment in await tx.rows(Segment, name, partition.partition_id):
                    gone[segment.s3_bucket, segment.s3_key] += 1
                    tx.delete(segment)
            await self._remove_from_objects(tx, gone)
            for kind in (PartitionLease, ProducerSequence):
                for row in await tx.rows(kind, name):
                    tx.delete(row)
            for group in await tx.rows(ConsumerGroup):
                for of_group in (ConsumerOffset, GroupLease):
                    for row in await tx.rows(of_group, group.group_id, within=Range(prefix=(name,))):
                        tx.delete(row)

        await self._transact(change)

    async def get_topic(self, name: str) -> Topic | None:
        validation.name("topic", name)
        return await self._get(Topic, name)

    async def list_topics(self) -> list[Topic]:
        return await self._read(lambda reader: reader.rows(Topic))

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        validation.name("topic", name)
        validation.optional("retention_ms", retention_ms, validation.integer)
        text = topic_config(config)

        async def change(tx: Transaction) -> Topic:
            topic = await tx.get(Topic, name)
            if topic is None:
                raise NotFound(f"topic {name!r} does not exist")
            return tx.replace(topic, config=text, retention_ms=retention_ms, updated_at=tx.now)

        return await self._transact(change)

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        return await self._get(Partition, topic, partition_id)

    async def get_partitions(self, keys: Sequence[tuple[str, int]]) -> list[Partition]:
        for topic, number in keys:
            validation.name("topic", topic)
            validation.integer32("partition_id", number)
        if not keys:
            return []
        found = await self._read(lambda reader: reader.get_many(Partition, sorted(set(keys))))
        return list(found.values())

    async def list_partitions(self, topic: str) -> list[Partition]:
        validation.name("topic", topic)
        rows = await self._read(lambda reader: reader.rows(Partition, topic))
        if not rows:  # every topic has partitions
            raise NotFound(f"topic {topic!r} does not exist")
        return rows

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("high_watermark", high_watermark)

        async def change(tx: Transaction) -> Partition:
            partition = await self._partition(tx, topic, partition_id)
            if partition.high_watermark >= high_watermark:
                return partition
            return tx.replace(partition, high_watermark=high_watermark, updated_at=tx.now)

        return await self._transact(change)

    async def _partition(self, reader: Reader, topic: str, partition_id: int) -> Partition:
        return (await self._partitions(reader, [(topic, partition_id)]))[topic, partition_id]

    async def _partitions(self, reader: Reader, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Partition]:
        """Raises the NotFound that names the first missing partition."""
        found = await reader.get_many(Partition, keys)
        for key in keys:
            if key not in found:
                raise NotFound(f"{partition_name(*key)} does not exist")
        return {(row.topic, row.partition_id): row for row in found.values()}
