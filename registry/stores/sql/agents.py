"""Agents and the partition leases they hold.

A lease is judged by two things: the clock of whoever asks decides when it may be taken over, the epoch decides who
may write. Clocks of two hosts may differ; then a takeover comes early or late, but the epoch still fences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, literal, or_, select, update
from sqlalchemy.sql import Executable

from registry import checks
from registry.documents import Document, JsonValue
from registry.errors import Conflict, NotFound
from registry.models import Agent, PartitionLease
from registry.schema import agents, partition_leases
from registry.stores.sql.base import select_rows
from registry.stores.sql.segments import fenced
from registry.stores.sql.topics import SqlTopics, partition_name


class SqlAgents(SqlTopics):
    async def register_agent(
        self,
        agent_id: str,
        address: str,
        *,
        zone: str = "",
        group: str = "",
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        checks.name("agent_id", agent_id)
        checks.filled("address", address)
        checks.text("zone", zone)
        checks.text("group", group)
        now = self._clock.now_ms()
        agent = Agent(agent_id, address, zone, group, now, now, Document.of(metadata or {}, "metadata"))
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
        checks.name("agent_id", agent_id)
        now = self._clock.now_ms()
        if not await self._write(update(agents).where(agents.c.agent_id == agent_id).values(last_heartbeat=now)):
            raise NotFound(f"agent {agent_id!r} is not registered")

    async def get_agent(self, agent_id: str) -> Agent | None:
        checks.name("agent_id", agent_id)
        return await self._row(Agent, select_rows(Agent).where(agents.c.agent_id == agent_id))

    async def list_agents(self, *, alive_within_ms: int | None = None, group: str | None = None) -> list[Agent]:
        checks.optional("alive_within_ms", alive_within_ms, checks.whole)
        checks.optional("group", group, checks.text)
        query = select_rows(Agent)
        if alive_within_ms is not None:
            query = query.where(agents.c.last_heartbeat >= self._clock.now_ms() - alive_within_ms)
        if group is not None:
            query = query.where(agents.c.group == group)
        # Sorted here: asked for this order, SQLite would walk all agents by id rather than the live ones by heartbeat.
        return sorted(await self._rows(Agent, query), key=lambda agent: agent.agent_id)

    async def deregister_agent(self, agent_id: str) -> None:
        checks.name("agent_id", agent_id)
        if not await self._write(delete(agents).where(agents.c.agent_id == agent_id)):
            raise NotFound(f"agent {agent_id!r} is not registered")

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
            f"the lease of {partition_name(topic, partition_id)} is held by {holder.leader_agent_id!r} "
            f"until {holder.expires_at}",
            [holder.leader_agent_id],
        )

    async def acquire_partition_leases(
        self, partitions_wanted: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        checks.name("agent_id", agent_id)
        checks.ttl("ttl_ms", ttl_ms)
        for topic, number in partitions_wanted:
            checks.name("topic", topic)
            checks.whole32("partition_id", number)
        if not partitions_wanted:
            return []
        now = self._clock.now_ms()
        columns = partition_leases.c
        keys = sorted(set(partitions_wanted))
        given = self._given([columns.topic, columns.partition_id], keys)
        rows = select(
            given.c.topic, given.c.partition_id, literal(agent_id), literal(now + ttl_ms), literal(now), literal(1)
        ).where(literal(True))  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT
        insert = self._insert(partition_leases).from_select([column.name for column in columns], rows)
        statement = insert.on_conflict_do_update(
            index_elements=[columns.topic, columns.partition_id],
            set_={
                "leader_agent_id": insert.excluded.leader_agent_id,
                "expires_at": insert.excluded.expires_at,
                "acquired_at": insert.excluded.acquired_at,
                "epoch": columns.epoch + 1,
            },
            where=or_(
                columns.leader_agent_id.is_(None), columns.leader_agent_id == agent_id, columns.expires_at <= now
            ),
        ).returning(partition_leases)
        try:
            return await self._write_leases(statement)
        except NotFound:
            await self._explain_missing_lease(agent_id, keys)
            raise

    async def renew_partition_lease(self, lease: PartitionLease, ttl_ms: int) -> PartitionLease:
        renewed = await self.renew_partition_leases([lease], ttl_ms)
        if not renewed:
            raise fenced((lease.topic, lease.partition_id))
        return renewed[0]

    async def renew_partition_leases(self, leases: Sequence[PartitionLease], ttl_ms: int) -> list[PartitionLease]:
        checks.ttl("ttl_ms", ttl_ms)
        for lease in leases:
            _check_lease(lease)
        held = {(x.topic, x.partition_id, x.leader_agent_id, x.epoch) for x in leases if x.leader_agent_id is not None}
        if not held:
            return []
        columns = partition_leases.c
        given = self._given([columns.topic, columns.partition_id, columns.leader_agent_id, columns.epoch], sorted(held))
        statement = (
            update(partition_leases)
            .where(*(columns[column.name] == column for column in given.c))
            .values(expires_at=self._clock.now_ms() + ttl_ms)
            .returning(partition_leases)
        )
        return await self._write_leases(statement)

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        _check_lease(lease)
        if lease.leader_agent_id is None:
            return False
        columns = partition_leases.c
        statement = (
            update(partition_leases)
            .where(
                columns.topic == lease.topic,
                columns.partition_id == lease.partition_id,
                columns.leader_agent_id == lease.leader_agent_id,
                columns.epoch == lease.epoch,
            )
            .values(leader_agent_id=None, expires_at=self._clock.now_ms())
        )
        return bool(await self._write(statement))

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        checks.name("topic", topic)
        checks.whole32("partition_id", partition_id)
        query = select_rows(PartitionLease).where(
            partition_leases.c.topic == topic, partition_leases.c.partition_id == partition_id
        )
        return await self._row(PartitionLease, query)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        checks.optional("topic", topic, checks.name)
        checks.optional("agent_id", agent_id, checks.name)
        query = select_rows(PartitionLease).order_by(partition_leases.c.topic, partition_leases.c.partition_id)
        if topic is not None:
            query = query.where(partition_leases.c.topic == topic)
        if agent_id is not None:
            query = query.where(partition_leases.c.leader_agent_id == agent_id)
        return await self._rows(PartitionLease, query)

    async def _write_leases(self, statement: Executable) -> list[PartitionLease]:
        async with self._writing_once() as connection:
            rows = [PartitionLease(*row) for row in await connection.execute(statement)]
        return sorted(rows, key=lambda lease: (lease.topic, lease.partition_id))

    async def _explain_missing_lease(self, agent_id: str, keys: Sequence[tuple[str, int]]) -> None:
        if await self.get_agent(agent_id) is None:
            raise NotFound(f"agent {agent_id!r} is not registered")
        await self._require_partitions(keys)


def _check_lease(lease: PartitionLease) -> None:
    checks.name("topic", lease.topic)
    checks.whole32("partition_id", lease.partition_id)
    checks.optional("leader_agent_id", lease.leader_agent_id, checks.name)
    checks.whole("epoch", lease.epoch)
