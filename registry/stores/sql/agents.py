"""Agents and the partition leases they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, update

from registry import validation
from registry.errors import Conflict, NotFound
from registry.json_text import JsonValue, to_json_text
from registry.models import Agent, PartitionLease
from registry.schema import agents, partition_leases
from registry.stores.sql.base import select_rows
from registry.stores.sql.leases import PARTITION_LEASES, SqlLeases
from registry.stores.sql.topics import partition_name


class SqlAgents(SqlLeases):
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
        now = self._clock.now_ms()
        agent = Agent(agent_id, address, zone, group, now, now, to_json_text(metadata or {}, "metadata"))
        values = {field: getattr(agent, field) for field in Agent.__struct_fields__}
        statement = self._insert(agents).values(values)
        await self._write(
            statement.on_conflict_do_update(
                index_elements=[agents.c.agent_id],
                set_={name: statement.excluded[name] for name in values if name != "agent_id"},
            )
        )
        return agent

    async def heartbeat(self, agent_id: str) -> None:
        validation.name("agent_id", agent_id)
        now = self._clock.now_ms()
        if not await self._write(update(agents).where(agents.c.agent_id == agent_id).values(last_heartbeat=now)):
            raise NotFound(f"agent {agent_id!r} is not registered")

    async def get_agent(self, agent_id: str) -> Agent | None:
        validation.name("agent_id", agent_id)
        return await self._row(Agent, select_rows(Agent).where(agents.c.agent_id == agent_id))

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        validation.optional("alive_within_ms", alive_within_ms, validation.integer)
        validation.optional("group", group, validation.text)
        query = select_rows(Agent)
        if alive_within_ms is not None:
            query = query.where(agents.c.last_heartbeat >= self._clock.now_ms() - alive_within_ms)
        if group is not None:
            query = query.where(agents.c.group == group)
        # Sorted here: with ORDER BY agent_id, SQLite would scan all agents instead of the live ones by heartbeat.
        return sorted(await self._rows(Agent, query), key=lambda agent: agent.agent_id)

    async def deregister_agent(self, agent_id: str, *, last_heartbeat: int | None = None) -> None:
        validation.name("agent_id", agent_id)
        validation.optional("last_heartbeat", last_heartbeat, validation.integer)
        statement = delete(agents).where(agents.c.agent_id == agent_id)
        if last_heartbeat is not None:
            statement = statement.where(agents.c.last_heartbeat == last_heartbeat)
        if not await self._write(statement):
            raise NotFound(f"agent {agent_id!r} is not registered" + " any more" * (last_heartbeat is not None))

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
        try:
            return await self._acquire_leases(PARTITION_LEASES, [], partitions, agent_id, ttl_ms)
        except NotFound:
            await self._explain_missing_lease(agent_id, sorted(set(partitions)))
            raise

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        return await self._release_lease(PARTITION_LEASES, lease)

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        validation.name("topic", topic)
        validation.integer32("partition_id", partition_id)
        query = select_rows(PartitionLease).where(
            partition_leases.c.topic == topic, partition_leases.c.partition_id == partition_id
        )
        return await self._row(PartitionLease, query)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        validation.optional("topic", topic, validation.name)
        validation.optional("agent_id", agent_id, validation.name)
        query = select_rows(PartitionLease).order_by(partition_leases.c.topic, partition_leases.c.partition_id)
        if topic is not None:
            query = query.where(partition_leases.c.topic == topic)
        if agent_id is not None:
            query = query.where(partition_leases.c.leader_agent_id == agent_id)
        return await self._rows(PartitionLease, query)

    async def _explain_missing_lease(self, agent_id: str, keys: Sequence[tuple[str, int]]) -> None:
        if await self.get_agent(agent_id) is None:
            raise NotFound(f"agent {agent_id!r} is not registered")
        await self._require_partitions(keys)
