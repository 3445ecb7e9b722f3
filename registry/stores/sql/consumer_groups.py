"""Consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import and_, bindparam, delete, exists, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Executable

from registry import validation
from registry.errors import Invalid, NotFound, OffsetsMoved
from registry.inputs import Advance, OffsetDraft, validate
from registry.models import ConsumerGroup, ConsumerOffset, GroupLease
from registry.schema import consumer_groups, consumer_offsets, partitions, segments
from registry.stores.sql.base import require_row, select_rows
from registry.stores.sql.group_leases import SqlGroupLeases, check_leases
from registry.stores.sql.topics import partition_name

GET_OFFSET = select_rows(ConsumerOffset).where(
    consumer_offsets.c.group_id == bindparam("group_id"),
    consumer_offsets.c.topic == bindparam("topic"),
    consumer_offsets.c.partition_id == bindparam("partition_id"),
)


class SqlConsumerGroups(SqlGroupLeases):
    async def ensure_consumer_group(self, group_id: str) -> ConsumerGroup:
        validation.name("group_id", group_id)
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
        # NotFound if it was deleted in between: the next call creates it again.
        return require_row(await self._row(ConsumerGroup, query), f"consumer group {group_id!r}")

    async def commit_offset(
        self, group_id: str, topic: str, partition_id: int, offset: int, metadata: str | None = None
    ) -> None:
        await self.commit_offsets(group_id, [OffsetDraft(topic, partition_id, offset, metadata)])

    async def commit_offsets(
        self, group_id: str, offsets: Sequence[OffsetDraft], *, leases: Sequence[GroupLease] = ()
    ) -> None:
        validation.name("group_id", group_id)
        validate(offsets)
        check_leases(leases, group_id)
        last = {(draft.topic, draft.partition_id): draft for draft in offsets}
        if not last:
            return
        statement = self._commit(group_id, last)
        try:
            if leases:
                async with self._transaction() as connection:
                    await self._require_group_leases(connection, leases)
                    await connection.execute(statement)
            else:
                await self._write(statement)
        except NotFound:
            await self._explain_missing(group_id, list(last))
            raise

    def _commit(self, group_id: str, last: Mapping[tuple[str, int], OffsetDraft]) -> Executable:
        """Upserts one row per partition, sorted, so that concurrent callers can't deadlock."""
        columns = consumer_offsets.c
        given = self._bind_rows(
            [columns.topic, columns.partition_id, columns.committed_offset, columns.metadata],
            [(*key, last[key].committed_offset, last[key].metadata) for key in sorted(last)],
        )
        rows = select(
            literal(group_id), given.c.topic, given.c.partition_id, given.c.committed_offset, given.c.metadata,
            literal(self._clock.now_ms()),
        ).where(literal(True))  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT  # fmt: skip
        insert = self._insert(consumer_offsets).from_select([column.name for column in columns], rows)
        return insert.on_conflict_do_update(
            index_elements=[columns.group_id, columns.topic, columns.partition_id],
            set_={name: insert.excluded[name] for name in ("committed_offset", "metadata", "committed_at")},
        )

    async def reset_offsets(self, group_id: str, offsets: Sequence[OffsetDraft]) -> list[OffsetDraft]:
        validation.name("group_id", group_id)
        validate(offsets)
        wanted = {(draft.topic, draft.partition_id): draft for draft in offsets}
        if not wanted:
            return []
        keys = sorted(wanted)
        now = self._clock.now_ms()
        async with self._transaction() as connection:
            ranges = await self._ranges(connection, keys)
            beyond = [wanted[key] for key in keys if key in ranges and wanted[key].committed_offset > ranges[key][1]]
            if beyond:
                raise beyond_end(beyond, ranges)
            missing = next((key for key in keys if key not in ranges), None)
            if missing is not None:
                raise NotFound(f"{partition_name(*missing)} does not exist")
            reset = {
                key: msgspec.structs.replace(draft, committed_offset=max(draft.committed_offset, ranges[key][0]))
                for key, draft in wanted.items()
            }
            new = self._insert(consumer_groups).values(group_id=group_id, created_at=now, updated_at=now)
            await connection.execute(new.on_conflict_do_nothing())
            await connection.execute(self._commit(group_id, reset))
        return [reset[key] for key in keys]

    async def _ranges(
        self, connection: AsyncConnection, keys: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the first retained offset and the next one to be written, for each partition that exists."""
        columns = partitions.c
        given = self._bind_rows([columns.topic, columns.partition_id], keys)
        first = (
            select(func.min(segments.c.base_offset))
            .where(segments.c.topic == columns.topic, segments.c.partition_id == columns.partition_id)
            .scalar_subquery()
        )
        same = and_(columns.topic == given.c.topic, columns.partition_id == given.c.partition_id)
        query = select(columns.topic, columns.partition_id, first, columns.high_watermark).join(given, same)
        return {
            (topic, number): (end if start is None else start, end)
            for topic, number, start, end in await connection.execute(query)
        }

    async def get_committed_offset(self, group_id: str, topic: str, partition_id: int) -> ConsumerOffset | None:
        validation.name("group_id", group_id)
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        return await self._row(ConsumerOffset, GET_OFFSET, group_id=group_id, topic=topic, partition_id=partition_id)

    async def get_consumer_offsets(self, group_id: str) -> list[ConsumerOffset]:
        validation.name("group_id", group_id)
        query = (
            select_rows(ConsumerOffset)
            .where(consumer_offsets.c.group_id == group_id)
            .order_by(consumer_offsets.c.topic, consumer_offsets.c.partition_id)
        )
        return await self._rows(ConsumerOffset, query)

    async def delete_consumer_group(self, group_id: str) -> None:
        validation.name("group_id", group_id)
        if not await self._write(delete(consumer_groups).where(consumer_groups.c.group_id == group_id)):
            raise NotFound(f"consumer group {group_id!r} does not exist")

    async def _advance(self, connection: AsyncConnection, advances: Sequence[Advance], now: int) -> None:
        """Locks, compares and moves offsets. The insertion of a missing row fails if another writer was first."""
        columns = consumer_offsets.c
        given = self._bind_rows(
            [columns.group_id, columns.topic, columns.partition_id, columns.committed_offset, columns.metadata],
            [(*step.key, step.committed_offset, step.metadata) for step in advances],
        )
        same = and_(
            columns.group_id == given.c.group_id,
            columns.topic == given.c.topic,
            columns.partition_id == given.c.partition_id,
        )
        held = (
            select(columns.group_id, columns.topic, columns.partition_id, columns.committed_offset)
            .join(given, same)
            .order_by(columns.group_id, columns.topic, columns.partition_id)
            .with_for_update(of=consumer_offsets)
        )
        found = {(group, topic, number): offset for group, topic, number, offset in await connection.execute(held)}
        if any(found.get(step.key) != step.expected for step in advances):
            raise offsets_moved(advances, found)
        if found:
            values = {name: given.c[name] for name in ("committed_offset", "metadata")}
            await connection.execute(update(consumer_offsets).where(same).values(**values, committed_at=now))
        await self._insert_many(
            connection,
            consumer_offsets,
            [column.name for column in columns],
            [(*step.key, step.committed_offset, step.metadata, now) for step in advances if step.expected is None],
        )

    async def _explain_missing(self, group_id: str, keys: Sequence[tuple[str, int]]) -> None:
        """Raises the NotFound that names what a failed foreign key misses."""
        async with self._autocommit() as connection:
            group = exists().where(consumer_groups.c.group_id == group_id)
            if not (await connection.execute(select(group))).scalar():
                raise NotFound(f"consumer group {group_id!r} does not exist")
        await self._require_partitions(keys)


def check_advances(advances: Sequence[Advance]) -> None:
    validate(advances)
    seen: set[tuple[str, str, int]] = set()
    for step in advances:
        if step.key in seen:
            raise Invalid(
                "partition_id", step.partition_id, f"{step.group_id} advances twice in this partition in one call"
            )
        if step.committed_offset < (step.expected or 0):
            raise Invalid("committed_offset", step.committed_offset, f"is below the expected {step.expected}")
        seen.add(step.key)


def offsets_moved(advances: Sequence[Advance], found: Mapping[tuple[str, str, int], int]) -> OffsetsMoved:
    """``found``: the committed offsets, as far as they are known."""
    wrong = [step for step in advances if found.get(step.key) != step.expected] or list(advances)
    shown = "; ".join(
        f"{step.group_id} has {_offset_text(found.get(step.key))} of {step.topic}/{step.partition_id}, "
        f"not {_offset_text(step.expected)}"
        for step in wrong[:5]
    )
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return OffsetsMoved(
        f"{shown}{more}: nothing was written; continue from the group's committed offsets",
        [f"{step.topic}/{step.partition_id}" for step in wrong],
    )


def beyond_end(beyond: Sequence[OffsetDraft], ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Invalid:
    shown = []
    for draft in beyond[:5]:
        start, end = ranges[draft.topic, draft.partition_id]
        shown.append(f"{draft.topic}/{draft.partition_id} has offsets from {start} on and ends at {end}")
    more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
    return Invalid("committed_offset", beyond[0].committed_offset, f"{'; '.join(shown)}{more}: nothing was changed")


def _offset_text(offset: int | None) -> str:
    return "nothing committed" if offset is None else f"offset {offset}"
