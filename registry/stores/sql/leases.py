"""What partition leases (of writers) and group leases (of consumer group members) have in common.

A row changes only with its holder. It has the term of the lease, and the heartbeats of the holder, which is an agent,
renew all its leases. The caller's clock decides when an expired lease may be taken over; the epoch decides who may
write. If the clocks of two hosts differ, a takeover comes early or late, but the epoch still fences the previous
holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Column, ColumnClause, Table, and_, exists, literal, literal_column, not_, or_, select, update
from sqlalchemy.sql import Executable

from registry import validation
from registry.models import GroupLease, PartitionLease
from registry.schema import agents, table_of
from registry.stores.sql.topics import SqlTopics

L = TypeVar("L", bound=PartitionLease | GroupLease)


class LeaseTable(msgspec.Struct, Generic[L], frozen=True):
    """One kind of lease. ``holder``: the column with the holder's id."""

    row: type[L]
    holder: str

    @property
    def table(self) -> Table:
        return table_of(self.row)

    @property
    def held_columns(self) -> tuple[str, ...]:
        """The columns that identify a lease as held by its holder in its epoch."""
        return (*self.row.key, self.holder, "epoch")

    def conflicting(self, name: str) -> ColumnClause[Any]:
        """A column of the row that an INSERT conflicts with, for a subquery: SQLAlchemy correlates only SELECTs."""
        return literal_column(f"{self.row.table}.{name}", self.table.c[name].type)

    def columns(self, names: Sequence[str]) -> list[Column[Any]]:
        return [self.table.c[name] for name in names]

    def held_values(self, lease: L) -> tuple[Any, ...]:
        return tuple(getattr(lease, name) for name in self.held_columns)

    def is_held(self, lease: L) -> bool:
        return getattr(lease, self.holder) is not None

    def rows(self, found: Iterable[Sequence[Any]]) -> list[L]:
        return sorted((self.row(*row) for row in found), key=lambda lease: (lease.topic, lease.partition_id))

    def check(self, leases: Sequence[L]) -> None:
        how = {"partition_id": validation.integer32, "epoch": validation.integer, self.holder: _optional_name}
        for name in self.held_columns:
            validation.every(name, [getattr(lease, name) for lease in leases], how.get(name, validation.name))


def _optional_name(field: str, value: object) -> None:
    validation.optional(field, value, validation.name)


PARTITION_LEASES = LeaseTable(PartitionLease, "leader_agent_id")
GROUP_LEASES = LeaseTable(GroupLease, "member_id")


class SqlLeases(SqlTopics):
    async def _acquire_leases(
        self, kind: LeaseTable[L], group: Sequence[str], partitions: Sequence[tuple[str, int]], holder: str, ttl_ms: int
    ) -> list[L]:
        """Acquires leases that are free, expired or the holder's own. ``group``: key values before the partition."""
        validation.ttl("ttl_ms", ttl_ms)
        for topic, number in partitions:
            validation.name("topic", topic)
            validation.integer32("partition_id", number)
        if not partitions:
            return []
        now, columns = self._clock.now_ms(), kind.table.c
        renewed = exists().where(
            agents.c.agent_id == kind.conflicting(kind.holder),
            agents.c.last_heartbeat + kind.conflicting("expires_at") - kind.conflicting("acquired_at") > now,
        )
        given = self._bind_rows([columns.topic, columns.partition_id], sorted(set(partitions)))
        rows = select(
            *map(literal, group), *given.c, literal(holder), literal(now + ttl_ms), literal(now), literal(1)
        ).where(literal(True))  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT
        insert = self._insert(kind.table).from_select([column.name for column in columns], rows)
        statement = insert.on_conflict_do_update(
            index_elements=kind.columns(kind.row.key),
            set_={
                kind.holder: insert.excluded[kind.holder],
                "expires_at": insert.excluded.expires_at,
                "acquired_at": insert.excluded.acquired_at,
                "epoch": columns.epoch + 1,
            },
            where=or_(
                columns[kind.holder].is_(None),
                columns[kind.holder] == holder,
                and_(columns.expires_at <= now, not_(renewed)),
            ),
        ).returning(kind.table)
        return await self._write_leases(kind, statement)

    async def _release_lease(self, kind: LeaseTable[L], lease: L) -> bool:
        kind.check([lease])
        if not kind.is_held(lease):
            return False
        held = zip(kind.columns(kind.held_columns), kind.held_values(lease), strict=True)
        statement = (
            update(kind.table)
            .where(*(column == value for column, value in held))
            .values({kind.holder: None, "expires_at": self._clock.now_ms()})
        )
        return bool(await self._write(statement))

    async def _write_leases(self, kind: LeaseTable[L], statement: Executable) -> list[L]:
        async with self._single_statement() as connection:
            return kind.rows(await connection.execute(statement))
