"""Which member of a consumer group reads which partition.

As with the leases of writers, the clock of whoever asks decides when one may be taken over, and the epoch who may
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, exists, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Executable
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from registry import checks
from registry.errors import Fenced, Invalid, NotFound
from registry.models import GroupLease
from registry.schema import agents, consumer_groups, group_leases
from registry.stores.sql.base import select_rows
from registry.stores.sql.topics import SqlTopics


class SqlGroupLeases(SqlTopics):
    async def acquire_group_leases(
        self, group_id: str, partitions_wanted: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        checks.name("group_id", group_id)
        checks.name("member_id", member_id)
        checks.ttl("ttl_ms", ttl_ms)
        for topic, number in partitions_wanted:
            checks.name("topic", topic)
            checks.whole32("partition_id", number)
        if not partitions_wanted:
            return []
        now = self._clock.now_ms()
        columns = group_leases.c
        keys = sorted(set(partitions_wanted))
        given = self._given([columns.topic, columns.partition_id], keys)
        rows = select(
            literal(group_id), given.c.topic, given.c.partition_id, literal(member_id), literal(now + ttl_ms),
            literal(now), literal(1),
        ).where(literal(True))  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT  # fmt: skip
        insert = self._insert(group_leases).from_select([column.name for column in columns], rows)
        statement = insert.on_conflict_do_update(
            index_elements=[columns.group_id, columns.topic, columns.partition_id],
            set_={
                "member_id": insert.excluded.member_id,
                "expires_at": insert.excluded.expires_at,
                "acquired_at": insert.excluded.acquired_at,
                "epoch": columns.epoch + 1,
            },
            where=or_(columns.member_id.is_(None), columns.member_id == member_id, columns.expires_at <= now),
        ).returning(group_leases)
        try:
            return await self._write_group_leases(statement)
        except NotFound:
            async with self._reading() as connection:
                for column, name in ((agents.c.agent_id, member_id), (consumer_groups.c.group_id, group_id)):
                    if not (await connection.execute(select(exists().where(column == name)))).scalar():
                        what = "agent" if column is agents.c.agent_id else "consumer group"
                        raise NotFound(f"{what} {name!r} does not exist") from None
            await self._require_partitions(keys)
            raise

    async def renew_group_leases(self, leases: Sequence[GroupLease], ttl_ms: int) -> list[GroupLease]:
        checks.ttl("ttl_ms", ttl_ms)
        check_leases(leases)
        held = {_holding(lease) for lease in leases if lease.member_id is not None}
        if not held:
            return []
        columns = group_leases.c
        given = self._given(_held_columns(), sorted(held))
        statement = (
            update(group_leases)
            .where(*(columns[column.name] == column for column in given.c))
            .values(expires_at=self._clock.now_ms() + ttl_ms)
            .returning(group_leases)
        )
        return await self._write_group_leases(statement)

    async def release_group_lease(self, lease: GroupLease) -> bool:
        check_leases([lease])
        if lease.member_id is None:
            return False
        held = zip(_held_columns(), _holding(lease), strict=True)
        statement = (
            update(group_leases)
            .where(*(column == value for column, value in held))
            .values(member_id=None, expires_at=self._clock.now_ms())
        )
        return bool(await self._write(statement))

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        checks.name("group_id", group_id)
        checks.optional("topic", topic, checks.name)
        columns = group_leases.c
        query = select_rows(GroupLease).where(columns.group_id == group_id)
        if topic is not None:
            query = query.where(columns.topic == topic)
        return await self._rows(GroupLease, query.order_by(columns.topic, columns.partition_id))

    async def _require_group_leases(self, connection: AsyncConnection, leases: Sequence[GroupLease]) -> None:
        """Locked until the transaction ends: whoever acquires one of them sees what it has committed."""
        columns = group_leases.c
        keys = sorted({(lease.group_id, lease.topic, lease.partition_id) for lease in leases})
        given = self._given([columns.group_id, columns.topic, columns.partition_id], keys)
        query = (
            select(*_held_columns())
            .join_from(group_leases, given, _same_lease(given.c))
            .order_by(columns.topic, columns.partition_id)  # as acquiring does, so that neither locks the other out
            .with_for_update(of=group_leases, read=True)
        )
        current = {tuple(row) for row in await connection.execute(query)}
        lost = [lease for lease in leases if lease.member_id is None or _holding(lease) not in current]
        if lost:
            more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
            names = [f"{lease.topic}/{lease.partition_id}" for lease in lost]
            raise Fenced(f"{names[0]}{more} is read by another member of group {lost[0].group_id!r} by now", names)

    async def _write_group_leases(self, statement: Executable) -> list[GroupLease]:
        async with self._writing_once() as connection:
            rows = [GroupLease(*row) for row in await connection.execute(statement)]
        return sorted(rows, key=lambda lease: (lease.topic, lease.partition_id))


def _held_columns() -> list[Column[Any]]:
    columns = group_leases.c
    return [columns.group_id, columns.topic, columns.partition_id, columns.member_id, columns.epoch]


def _holding(lease: GroupLease) -> tuple[str, str, int, str | None, int]:
    return lease.group_id, lease.topic, lease.partition_id, lease.member_id, lease.epoch


def _same_lease(given: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[bool]:
    columns = group_leases.c
    return and_(*(columns[name] == given[name] for name in ("group_id", "topic", "partition_id")))


def check_leases(leases: Sequence[GroupLease], group_id: str | None = None) -> None:
    for lease in leases:
        checks.name("group_id", lease.group_id)
        checks.name("topic", lease.topic)
        checks.whole32("partition_id", lease.partition_id)
        checks.optional("member_id", lease.member_id, checks.name)
        checks.whole("epoch", lease.epoch)
        if group_id not in (None, lease.group_id):
            raise Invalid("leases", lease.group_id, f"must be of the group that commits, {group_id!r}")
