"""What the leases of writers and those of a group's members have in common.

A lease is judged by two things: the clock of whoever asks decides when it may be taken over, the epoch decides who may
go on. Clocks of two hosts may differ; then a takeover comes early or late, but the epoch still fences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import Column, Table, literal, or_, select, update
from sqlalchemy.sql import Executable

from registry import validation
from registry.models import GroupLease, PartitionLease
from registry.schema import table_of
from registry.stores.sql.topics import SqlTopics

L = TypeVar("L", bound=PartitionLease | GroupLease)


class Leases(msgspec.Struct, Generic[L], frozen=True):
    """One kind of them. ``holder``: the column that says whose a lease is."""

    row: type[L]
    holder: str

    @property
    def table(self) -> Table:
        return table_of(self.row)

    @property
    def held(self) -> tuple[str, ...]:
        """The columns that have to be the same still."""
        return (*self.row.key, self.holder, "epoch")

    def columns(self, names: Sequence[str]) -> list[Column[Any]]:
        return [self.table.c[name] for name in names]

    def holding(self, lease: L) -> tuple[Any, ...]:
        return tuple(getattr(lease, name) for name in self.held)

    def is_held(self, lease: L) -> bool:
        return getattr(lease, self.holder) is not None

    def rows(self, found: Iterable[Sequence[Any]]) -> list[L]:
        return sorted((self.row(*row) for row in found), key=lambda lease: (lease.topic, lease.partition_id))

    def check(self, leases: Sequence[L]) -> None:
        how = {"partition_id": validation.whole32, "epoch": validation.whole, self.holder: _optional_name}
        for name in self.held:
            validation.every(name, [getattr(lease, name) for lease in leases], how.get(name, validation.name))


def _optional_name(field: str, value: object) -> None:
    validation.optional(field, value, validation.name)


WRITERS = Leases(PartitionLease, "leader_agent_id")
MEMBERS = Leases(GroupLease, "member_id")


class SqlLeases(SqlTopics):
    async def _acquire_leases(
        self, kind: Leases[L], group: Sequence[str], partitions: Sequence[tuple[str, int]], holder: str, ttl_ms: int
    ) -> list[L]:
        """Those that are free, expired or the holder's own. ``group``: what stands before the partition in the key."""
        validation.ttl("ttl_ms", ttl_ms)
        for topic, number in partitions:
            validation.name("topic", topic)
            validation.whole32("partition_id", number)
        if not partitions:
            return []
        now, columns = self._clock.now_ms(), kind.table.c
        given = self._given([columns.topic, columns.partition_id], sorted(set(partitions)))
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
            where=or_(columns[kind.holder].is_(None), columns[kind.holder] == holder, columns.expires_at <= now),
        ).returning(kind.table)
        return await self._write_leases(kind, statement)

    async def _renew_leases(self, kind: Leases[L], leases: Sequence[L], ttl_ms: int) -> list[L]:
        validation.ttl("ttl_ms", ttl_ms)
        kind.check(leases)
        held = sorted({kind.holding(lease) for lease in leases if kind.is_held(lease)})
        return await self._renew_held(kind, held, self._clock.now_ms() + ttl_ms) if held else []

    async def _renew_held(self, kind: Leases[L], held: Sequence[tuple[Any, ...]], expires_at: int) -> list[L]:
        given = self._given(kind.columns(kind.held), held)
        statement = (
            update(kind.table)
            .where(*(kind.table.c[column.name] == column for column in given.c))
            .values(expires_at=expires_at)
            .returning(kind.table)
        )
        return await self._write_leases(kind, statement)

    async def _release_lease(self, kind: Leases[L], lease: L) -> bool:
        kind.check([lease])
        if not kind.is_held(lease):
            return False
        held = zip(kind.columns(kind.held), kind.holding(lease), strict=True)
        statement = (
            update(kind.table)
            .where(*(column == value for column, value in held))
            .values({kind.holder: None, "expires_at": self._clock.now_ms()})
        )
        return bool(await self._write(statement))

    async def _write_leases(self, kind: Leases[L], statement: Executable) -> list[L]:
        async with self._writing_once() as connection:
            return kind.rows(await connection.execute(statement))
