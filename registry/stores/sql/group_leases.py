"""Group leases: which member of a consumer group reads which partition."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.errors import Fenced, Invalid, NotFound
from registry.models import GroupLease
from registry.schema import agents, consumer_groups, group_leases
from registry.stores.sql.base import select_rows
from registry.stores.sql.leases import GROUP_LEASES, SqlLeases


class SqlGroupLeases(SqlLeases):
    async def acquire_group_leases(
        self, group_id: str, partitions: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        validation.name("group_id", group_id)
        validation.name("member_id", member_id)
        try:
            return await self._acquire_leases(GROUP_LEASES, [group_id], partitions, member_id, ttl_ms)
        except NotFound:
            async with self._autocommit() as connection:
                for column, name in ((agents.c.agent_id, member_id), (consumer_groups.c.group_id, group_id)):
                    if not (await connection.execute(select(exists().where(column == name)))).scalar():
                        what = "agent" if column is agents.c.agent_id else "consumer group"
                        raise NotFound(f"{what} {name!r} does not exist") from None
            await self._require_partitions(sorted(set(partitions)))
            raise

    async def release_group_lease(self, lease: GroupLease) -> bool:
        return await self._release_lease(GROUP_LEASES, lease)

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        validation.name("group_id", group_id)
        validation.optional("topic", topic, validation.name)
        columns = group_leases.c
        query = select_rows(GroupLease).where(columns.group_id == group_id)
        if topic is not None:
            query = query.where(columns.topic == topic)
        return await self._rows(GroupLease, query.order_by(columns.topic, columns.partition_id))

    async def _require_group_leases(self, connection: AsyncConnection, leases: Sequence[GroupLease]) -> None:
        """Locks the leases until the transaction ends: the next holder of one sees the offsets committed under it."""
        columns = group_leases.c
        keys = sorted({(lease.group_id, lease.topic, lease.partition_id) for lease in leases})
        given = self._bind_rows(GROUP_LEASES.columns(GroupLease.key), keys)
        same = [columns[column.name] == column for column in given.c]
        query = (
            select(*GROUP_LEASES.columns(GROUP_LEASES.held_columns))
            .join_from(group_leases, given, and_(*same))
            .order_by(columns.topic, columns.partition_id)  # the order in which leases are acquired, to avoid deadlocks
            .with_for_update(of=group_leases, read=True)
        )
        current = {tuple(row) for row in await connection.execute(query)}
        lost = [
            lease
            for lease in leases
            if not GROUP_LEASES.is_held(lease) or GROUP_LEASES.held_values(lease) not in current
        ]
        if lost:
            raise lost_leases(lost)


def lost_leases(lost: Sequence[GroupLease]) -> Fenced:
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    names = [f"{lease.topic}/{lease.partition_id}" for lease in lost]
    return Fenced(f"{names[0]}{more} is now read by another member of group {lost[0].group_id!r}", names)


def check_leases(leases: Sequence[GroupLease], group_id: str) -> None:
    GROUP_LEASES.check(leases)
    for lease in leases:
        if lease.group_id != group_id:
            raise Invalid("leases", lease.group_id, f"must belong to the group that commits, {group_id!r}")
