"""Agents and the partition leases they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from registry import validation
from registry.errors import Conflict, NotFound
from registry.json_text import JsonValue, to_json_text
from registry.models import Agent, GroupLease, PartitionLease, Topic
from registry.stores.dynamodb.leases import DynamoLeases, check_partitions
from registry.stores.dynamodb.reader import Reader
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.leases import PARTITION_LEASES
from registry.stores.sql.topics import partition_name


class DynamoAgents(DynamoLeases):
    async def register_agent(
        self,
        agent_id: str,
        address: str,
        *,
        zone: str = "",
        group: str = "",
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        validation.name("agent_id", agent_id)
        validation.non_empty("address", address)
        validation.text("zone", zone)
        validation.text("group", group)
        text = to_json_text(metadata or {}, "metadata")

        async def change(tx: Transaction) -> Agent:
            agent = Agent(agent_id, address, zone, group, tx.now, tx.now, text)
            old = await tx.get(Agent, agent_id)
            return tx.insert(agent) if old is None else tx.update(old, agent)

        return await self._transact(change)

    async def heartbeat(self, agent_id: str) -> None:
        validation.name("agent_id", agent_id)

        async def change(tx: Transaction) -> None:
            agent = await tx.get(Agent, agent_id)
            if agent is None:
                raise NotFound(f"agent {agent_id!r} is not registered")
            tx.replace(agent, last_heartbeat=tx.now)

        await self._transact(change)

    async def get_agent(self, agent_id: str) -> Agent | None:
        validation.name("agent_id", agent_id)
        return await self._get(Agent, agent_id)

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        validation.optional("alive_within_ms", alive_within_ms, validation.integer)
        validation.optional("group", group, validation.text)
        since = None if alive_within_ms is None else self._clock.now_ms() - alive_within_ms

        def wanted(agent: Agent) -> bool:
            return (since is None or agent.last_heartbeat >= since) and group in (None, agent.group)

        return await self._read(lambda reader: reader.rows(Agent, where=wanted))

    async def deregister_agent(self, agent_id: str, *, last_heartbeat: int | None = None) -> None:
        validation.name("agent_id", agent_id)
        validation.optional("last_heartbeat", last_heartbeat, validation.integer)

        async def change(tx: Transaction) -> None:
            agent = await tx.get(Agent, agent_id)
            if agent is None or last_heartbeat not in (None, agent.last_heartbeat):
                raise NotFound(f"agent {agent_id!r} is not registered" + " any more" * (last_heartbeat is not None))
            tx.delete(agent)
            for lease in await tx.pointed(PartitionLease, "agent", agent_id):
                tx.replace(lease, leader_agent_id=None)
            for held in await tx.pointed(GroupLease, "member", agent_id):
                tx.replace(held, member_id=None)

        await self._transact(change)

    async def acquire_partition_lease(
        self, topic: str, partition_id: int, agent_id: str, ttl_ms: int
    ) -> PartitionLease:
        acquired = await self.acquire_partition_leases([(topic, partition_id)], agent_id, ttl_ms)
        if acquired:
            return acquired[0]
        holder = await self.get_partition_lease(topic, partition_id)
        if holder is None or holder.leader_agent_id is None:
            raise Conflict(f"the lease of {partition_name(topic, partition_id)} was just released: try again")
        raise Conflict(
            f"the lease of {partition_name(topic, partition_id)} is held by {holder.leader_agent_id!r}",
            [holder.leader_agent_id],
        )

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        validation.name("agent_id", agent_id)
        check_partitions(partitions, ttl_ms)

        async def change(tx: Transaction) -> list[PartitionLease]:
            if await tx.get(Agent, agent_id) is None:
                raise NotFound(f"agent {agent_id!r} is not registered")

            def new(key: Sequence[str | int], epoch: int) -> PartitionLease:
                return PartitionLease(str(key[0]), int(key[1]), agent_id, tx.now + ttl_ms, tx.now, epoch)

            return await self._acquire(tx, PARTITION_LEASES, sorted(set(partitions)), agent_id, new)

        return await self._transact(change) if partitions else []

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        return await self._release_lease(PARTITION_LEASES, lease)

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        return await self._get(PartitionLease, topic, partition_id)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        validation.optional("topic", topic, validation.name)
        validation.optional("agent_id", agent_id, validation.name)

        async def read(reader: Reader) -> list[PartitionLease]:
            if agent_id is not None:
                held = await reader.pointed(PartitionLease, "agent", agent_id)
                return [lease for lease in held if topic in (None, lease.topic)]
            if topic is not None:
                return await reader.rows(PartitionLease, topic)
            topics = await reader.rows(Topic)
            return [lease for one in topics for lease in await reader.rows(PartitionLease, one.name)]

        return await self._read(read)
