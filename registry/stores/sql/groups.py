"""Consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, exists, literal, select

from registry import checks
from registry.drafts import OffsetDraft, checked
from registry.errors import NotFound
from registry.models import ConsumerGroup, ConsumerOffset, GroupLease
from registry.schema import consumer_groups, consumer_offsets
from registry.stores.sql.base import found, select_rows
from registry.stores.sql.group_leases import SqlGroupLeases, check_leases

GET_OFFSET = select_rows(ConsumerOffset).where(
    consumer_offsets.c.group_id == bindparam("group_id"),
    consumer_offsets.c.topic == bindparam("topic"),
    consumer_offsets.c.partition_id == bindparam("partition_id"),
)


class SqlConsumerGroups(SqlGroupLeases):
    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        checks.name("group_id", group_id)
        now = self._clock.now_ms()
        statement = (
            self._insert(consumer_groups)
            .values(group_id=group_id, created_at=now, updated_at=now)
            .on_conflict_do_nothing()
            .returning(consumer_groups)
        )
        created = await self._write_one(ConsumerGroup, statement)
        if created is not None:
            return created
        query = select_rows(ConsumerGroup).where(consumer_groups.c.group_id == group_id)
        # Deleted by another in between: whoever ensures it next creates it again.
        return found(await self._row(ConsumerGroup, query), f"consumer group {group_id!r}")

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        await self.commit_offsets(group_id, [OffsetDraft(topic, partition_id, offset, metadata)])

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        checks.name("group_id", group_id)
        checked(offsets)
        check_leases(leases, group_id)
        # One row a partition, in the same order in every call, so that two callers can't lock each other out.
        last = {(draft.topic, draft.partition_id): draft for draft in offsets}
        if not last:
            return
        columns = consumer_offsets.c
        given = self._given(
            [columns.topic, columns.partition_id, columns.committed_offset, columns.metadata],
            [(*key, last[key].committed_offset, last[key].metadata) for key in sorted(last)],
        )
        rows = select(
            literal(group_id), given.c.topic, given.c.partition_id, given.c.committed_offset, given.c.metadata,
            literal(self._clock.now_ms()),
        ).where(literal(True))  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT  # fmt: skip
        insert = self._insert(consumer_offsets).from_select([column.name for column in columns], rows)
        statement = insert.on_conflict_do_update(
            index_elements=[columns.group_id, columns.topic, columns.partition_id],
            set_={name: insert.excluded[name] for name in ("committed_offset", "metadata", "committed_at")},
        )
        try:
            if leases:
                async with self._writing() as connection:
                    await self._require_group_leases(connection, leases)
                    await connection.execute(statement)
            else:
                await self._write(statement)
        except NotFound:
            await self._explain_missing(group_id, list(last))
            raise

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None:
        checks.name("group_id", group_id)
        checks.name("topic", topic)
        checks.whole32("partition_id", partition_id)
        return await self._row(ConsumerOffset, GET_OFFSET, group_id=group_id, topic=topic, partition_id=partition_id)

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]:
        checks.name("group_id", group_id)
        query = (
            select_rows(ConsumerOffset)
            .where(consumer_offsets.c.group_id == group_id)
            .order_by(consumer_offsets.c.topic, consumer_offsets.c.partition_id)
        )
        return await self._rows(ConsumerOffset, query)

    async def delete_consumer_group(self, group_id: str) -> None:
        checks.name("group_id", group_id)
        if not await self._write(delete(consumer_groups).where(consumer_groups.c.group_id == group_id)):
            raise NotFound(f"consumer group {group_id!r} does not exist")

    async def _explain_missing(self, group_id: str, keys: Sequence[tuple[str, int]]) -> None:
        """A foreign key failed: raise the NotFound that names what is missing."""
        async with self._reading() as connection:
            group = exists().where(consumer_groups.c.group_id == group_id)
            if not (await connection.execute(select(group))).scalar():
                raise NotFound(f"consumer group {group_id!r} does not exist")
        await self._require_partitions(keys)
