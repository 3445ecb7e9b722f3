"""Topics and partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, bindparam, delete, exists, func, insert, select, update

from registry import validation
from registry.errors import AlreadyExists, Invalid, NotFound
from registry.json_text import JsonText, JsonValue, to_json_text
from registry.models import Partition, Topic
from registry.schema import partitions, segments, topics
from registry.stores.sql.base import require_row, select_rows
from registry.stores.sql.segment_objects import SqlSegmentObjects

MAX_PARTITIONS = 1_000_000

GET_TOPIC = select_rows(Topic).where(topics.c.name == bindparam("name"))
GET_PARTITION = select_rows(Partition).where(
    partitions.c.topic == bindparam("topic"), partitions.c.partition_id == bindparam("partition_id")
)


class SqlTopics(SqlSegmentObjects):
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
        now = self._clock.now_ms()
        topic = Topic(name, partition_count, retention_ms, topic_config(config), now, now)
        try:
            async with self._transaction() as connection:
                await connection.execute(
                    insert(topics).values(
                        name=name,
                        partition_count=partition_count,
                        retention_ms=retention_ms,
                        config=topic.config,
                        created_at=now,
                        updated_at=now,
                    )
                )
                await self._insert_many(
                    connection,
                    partitions,
                    ["topic", "partition_id", "high_watermark", "created_at", "updated_at"],
                    [(name, number, 0, now, now) for number in range(partition_count)],
                )
        except AlreadyExists:
            raise AlreadyExists(f"topic {name!r} exists") from None
        return topic

    async def delete_topic(self, name: str) -> None:
        validation.name("topic", name)
        mine = select(partitions.c.partition_id).where(partitions.c.topic == name)
        in_objects = (
            select(segments.c.s3_bucket, segments.c.s3_key, func.count())
            .where(segments.c.topic == name)
            .group_by(segments.c.s3_bucket, segments.c.s3_key)
        )
        async with self._transaction() as connection:
            # Locked as by writers, so that no segment is added between the count and the deletion.
            await connection.execute(mine.order_by(partitions.c.partition_id).with_for_update())
            gone = {(bucket, key): count for bucket, key, count in await connection.execute(in_objects)}
            await self._remove_from_objects(connection, gone)
            if not (await connection.execute(delete(topics).where(topics.c.name == name))).rowcount:
                raise NotFound(f"topic {name!r} does not exist")

    async def get_topic(self, name: str) -> Topic | None:
        validation.name("topic", name)
        return await self._row(Topic, GET_TOPIC, name=name)

    async def list_topics(self) -> list[Topic]:
        return await self._rows(Topic, select_rows(Topic).order_by(topics.c.name))

    async def update_topic_config(
        self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
    ) -> Topic:
        validation.name("topic", name)
        validation.optional("retention_ms", retention_ms, validation.integer)
        statement = (
            update(topics)
            .where(topics.c.name == name)
            .values(config=topic_config(config), retention_ms=retention_ms, updated_at=self._clock.now_ms())
            .returning(topics)
        )
        return require_row(await self._write_one(Topic, statement), f"topic {name!r}")

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        return await self._row(Partition, GET_PARTITION, topic=topic, partition_id=partition_id)

    async def get_partitions(self, keys: Sequence[tuple[str, int]]) -> list[Partition]:
        for topic, number in keys:
            validation.name("topic", topic)
            validation.integer32("partition_id", number)
        if not keys:
            return []
        given = self._bind_rows([partitions.c.topic, partitions.c.partition_id], sorted(set(keys)))
        same = (partitions.c.topic == given.c.topic) & (partitions.c.partition_id == given.c.partition_id)
        query = select(partitions).join_from(partitions, given, same)
        return await self._rows(Partition, query.order_by(partitions.c.topic, partitions.c.partition_id))

    async def list_partitions(self, topic: str) -> list[Partition]:
        validation.name("topic", topic)
        query = select_rows(Partition).where(partitions.c.topic == topic).order_by(partitions.c.partition_id)
        rows = await self._rows(Partition, query)
        if not rows:  # every topic has partitions
            raise NotFound(f"topic {topic!r} does not exist")
        return rows

    async def update_high_watermark(self, topic: str, partition_id: int, high_watermark: int) -> Partition:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        validation.integer("high_watermark", high_watermark)
        statement = (
            update(partitions)
            .where(_is(topic, partition_id), partitions.c.high_watermark < high_watermark)
            .values(high_watermark=high_watermark, updated_at=self._clock.now_ms())
            .returning(partitions)
        )
        moved = await self._write_one(Partition, statement)
        return moved or require_row(await self.get_partition(topic, partition_id), partition_name(topic, partition_id))

    async def _require_partitions(self, keys: Sequence[tuple[str, int]]) -> None:
        """Raises the NotFound that names the first missing partition."""
        given = self._bind_rows([partitions.c.topic, partitions.c.partition_id], keys)
        known = exists().where(partitions.c.topic == given.c.topic, partitions.c.partition_id == given.c.partition_id)
        query = select(given.c.topic, given.c.partition_id).where(~known).limit(1)
        async with self._autocommit() as connection:
            missing = (await connection.execute(query)).first()
        if missing is not None:
            raise NotFound(f"{partition_name(*missing)} does not exist")


def partition_name(topic: str, partition_id: int) -> str:
    return f"partition {partition_id} of topic {topic!r}"


def _is(topic: str, partition_id: int) -> ColumnElement[bool]:
    return (partitions.c.topic == topic) & (partitions.c.partition_id == partition_id)


def topic_config(config: Mapping[str, JsonValue] | None) -> JsonText:
    if config is not None and not isinstance(config, Mapping):
        raise Invalid("config", config, "must be a mapping")
    return to_json_text(config or {}, "config")
