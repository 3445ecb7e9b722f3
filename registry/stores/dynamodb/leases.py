"""Leases of partitions (writers) and of consumer groups (readers): see `registry.stores.sql.leases` for the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from registry import validation
from registry.errors import NotFound
from registry.models import Agent, ConsumerGroup, GroupLease, PartitionLease, lease_expiry
from registry.stores.dynamodb.reader import Range
from registry.stores.dynamodb.topics import DynamoTopics
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.group_leases import lost_leases
from registry.stores.sql.leases import GROUP_LEASES, LeaseTable

L = TypeVar("L", bound=PartitionLease | GroupLease)


class DynamoLeases(DynamoTopics):
    async def acquire_group_leases(
        self, group_id: str, partitions: Sequence[tuple[str, int]], member_id: str, ttl_ms: int
    ) -> list[GroupLease]:
        validation.name("group_id", group_id)
        validation.name("member_id", member_id)
        check_partitions(partitions, ttl_ms)

        async def change(tx: Transaction) -> list[GroupLease]:
            if await tx.get(Agent, member_id) is None:
                raise NotFound(f"agent {member_id!r} does not exist")
            if await tx.get(ConsumerGroup, group_id) is None:
                raise NotFound(f"consumer group {group_id!r} does not exist")
            keys = [(group_id, *key) for key in sorted(set(partitions))]

            def new(key: Sequence[str | int], epoch: int) -> GroupLease:
                return GroupLease(group_id, str(key[1]), int(key[2]), member_id, tx.now + ttl_ms, tx.now, epoch)

            return await self._acquire(tx, GROUP_LEASES, keys, member_id, new)

        return await self._transact(change) if partitions else []

    async def _acquire(
        self,
        tx: Transaction,
        kind: LeaseTable[L],
        keys: Sequence[tuple[str | int, ...]],
        holder: str,
        new: Callable[[Sequence[str | int], int], L],
    ) -> list[L]:
        found = await tx.get_many(kind.row, keys)
        holders = {str(getattr(lease, kind.holder)) for lease in found.values() if kind.is_held(lease)}
        agents = await tx.get_many(Agent, [(agent,) for agent in holders])
        acquired: list[L] = []
        for key in keys:
            old = found.get(key)
            if old is None:
                acquired.append(tx.insert(new(key, 1)))
                continue
            other = getattr(old, kind.holder)
            agent = agents.get((str(other),))
            expired = lease_expiry(old, agent.last_heartbeat if agent else None) <= tx.now
            if other in (None, holder) or expired:
                acquired.append(tx.update(old, new(key, old.epoch + 1)))
        await self._partitions(tx, [(str(key[-2]), int(key[-1])) for key in keys if key not in found])
        return acquired

    async def _release_lease(self, kind: LeaseTable[L], lease: L) -> bool:
        kind.check([lease])
        if not kind.is_held(lease):
            return False

        async def change(tx: Transaction) -> bool:
            current = await tx.get(kind.row, *_key(kind, lease))
            if current is None or kind.held_values(current) != kind.held_values(lease):
                return False
            tx.replace(current, **{kind.holder: None, "expires_at": tx.now})
            return True

        return await self._transact(change)

    async def release_group_lease(self, lease: GroupLease) -> bool:
        return await self._release_lease(GROUP_LEASES, lease)

    async def list_group_leases(self, group_id: str, *, topic: str | None = None) -> list[GroupLease]:
        validation.name("group_id", group_id)
        validation.optional("topic", topic, validation.name)
        within = Range() if topic is None else Range(prefix=(topic,))
        return await self._read(lambda reader: reader.rows(GroupLease, group_id, within=within))

    async def _require_group_leases(self, tx: Transaction, leases: Sequence[GroupLease]) -> None:
        found = await tx.get_many(GroupLease, [_key(GROUP_LEASES, lease) for lease in leases])
        current = {GROUP_LEASES.held_values(lease) for lease in found.values()}
        lost = [
            lease
            for lease in leases
            if not GROUP_LEASES.is_held(lease) or GROUP_LEASES.held_values(lease) not in current
        ]
        if lost:
            raise lost_leases(lost)


def _key(kind: LeaseTable[L], lease: L) -> tuple[str | int, ...]:
    return tuple(getattr(lease, name) for name in kind.row.key)


def check_partitions(partitions: Sequence[tuple[str, int]], ttl_ms: int) -> None:
    validation.ttl("ttl_ms", ttl_ms)
    for topic, number in partitions:
        validation.name("topic", topic)
        validation.integer32("partition_id", number)
