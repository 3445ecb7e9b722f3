"""`LeaseAgent`: a process that holds leases of partitions.

    async with LeaseAgent(store, clock, AgentSettings(topics=["orders"])) as agent:
        lease = await agent.acquire("orders", 3)

The agent acquires the lease first and reads the watermark afterwards. From the acquisition on no other agent can
register segments, so the watermark is exact. A process that was paused beyond the term of its leases may still believe
that it holds them: the epoch in its fences makes the registry refuse it. A heartbeat renews all leases of the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self
from uuid import uuid4

import structlog
from pydantic import BaseModel, ConfigDict, Field

from astha.clock import LoopClock
from astha.tasks import BackgroundTasks, cancel_and_wait
from components.lib.streams.agents.leases import HeldLease, Key, plan_rebalance, quota
from components.lib.streams.errors import NotLeader
from registry.clock import UnchangedTimer, UnchangedTimers
from registry.contract import MetadataStore
from registry.errors import NotFound, RegistryError
from registry.models import Agent, PartitionLease

log = structlog.get_logger(__name__)

_DEAD_AFTER_TERMS = 5.0
"""An agent without a new heartbeat for so many lease terms, by our own monotonic clock, is dead."""

_SINGLE_LOOKUPS = 8
"""Holders of more partitions are looked up with one query per topic."""


class AgentSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field("local", min_length=1, description="Address at which other processes reach this one.")
    group: str = Field("", description="Group of agents that share the partitions of `topics`.")
    zone: str = Field("", description="Availability zone of this process.")
    lease_s: float = Field(30.0, gt=0, description="Term of the leases; they expire without heartbeats.")
    renew_every_s: float = Field(10.0, gt=0, description="Interval of heartbeats, each of which renews all leases.")
    topics: list[str] | None = Field(
        None, description="Topics whose partitions the group shares; null: hold only partitions that are asked for."
    )
    drain_timeout_s: float = Field(5.0, ge=0, description="How long a release waits for writes in progress.")


class LeaseAgent:
    """Other agents can take its partitions as soon as it is closed, or when its leases expire."""

    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        settings: AgentSettings | None = None,
        *,
        agent_id: str | None = None,
    ) -> None:
        self.settings = settings or AgentSettings()
        self.agent_id = agent_id or f"agent-{uuid4().hex}"
        self._store = store
        self._clock = clock
        self._leases: dict[Key, HeldLease] = {}
        self._requests: dict[Key, asyncio.Future[HeldLease]] = {}  # unanswered
        self._queue: list[Key] = []  # requests that no acquisition has taken up yet
        self._acquiring: asyncio.Task[None] | None = None
        self._releases = BackgroundTasks(f"releases of {self.agent_id}", clock)
        self._background = BackgroundTasks(self.agent_id, clock)
        self._closing = False
        self._heartbeats = UnchangedTimers[str, int](clock)
        self._refused: dict[str, UnchangedTimer[int]] = {}  # heartbeats of agents that hold what we requested
        self._renewed = (0.0, 0)  # when the last heartbeat was sent, by both clocks
        self.writer: object | None = None  # at most one, because the writer assigns offsets

    async def __aenter__(self) -> Self:
        await self._register()
        if self.settings.topics is not None:
            await self.balance()
        self._background.supervise("lease renewal", self._renew_forever)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close writers first: the registry refuses what they register afterwards."""
        self._closing = True
        await self._background.stop()
        if self._acquiring is not None:
            await cancel_and_wait(self._acquiring)
        await self._releases.stop()
        self._refuse_requests(NotLeader("the agent was closed: open another one"))
        for lease in list(self._leases.values()):
            self.mark_lost(lease)
        try:
            await self._store.deregister_agent(self.agent_id)
        except RegistryError as failure:
            log.warning("agent not deregistered, its leases will expire", agent=self.agent_id, error=str(failure))

    @property
    def leases(self) -> list[HeldLease]:
        """The leases held now, by topic and partition."""
        return [self._leases[key] for key in sorted(self._leases)]

    def find(self, topic: str, partition_id: int) -> HeldLease | None:
        lease = self._leases.get((topic, partition_id))
        return None if lease is None or lease.releasing else lease

    async def acquire(self, topic: str, partition_id: int) -> HeldLease:
        """Returns the lease of the partition; acquires it if it is free.

        Raises NotLeader, which names the holder, or NotFound. Concurrent requests share one call to the registry.
        """
        lease = self.find(topic, partition_id)
        if lease is not None:
            return lease
        key = (topic, partition_id)
        if key in self._leases:
            raise NotLeader(f"partition {partition_id} of topic {topic!r} is moving to another agent: try again")
        if self._closing:
            raise NotLeader(f"agent {self.agent_id!r} is closed: open another one")
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = asyncio.get_running_loop().create_future()
            self._queue.append(key)
            if self._acquiring is None or self._acquiring.done():
                self._acquiring = asyncio.create_task(self._acquire_queued(), name=f"leases of {self.agent_id}")
        return await asyncio.shield(request)

    def mark_lost(self, lease: HeldLease) -> None:
        """The lease must not be used any more. The next `acquire` of its partition starts another epoch."""
        lease.lost = True
        if self._leases.get(lease.key) is lease:
            del self._leases[lease.key]

    async def release(self, lease: HeldLease) -> None:
        """Releases the lease when its users are done, or after `drain_timeout_s`."""
        lease.releasing = True
        try:
            await asyncio.wait_for(lease.wait_idle(), self.settings.drain_timeout_s)
        except TimeoutError:
            log.warning("lease released before its writers were done", partition=repr(lease))
        self.mark_lost(lease)
        await self._store.release_partition_lease(lease.row)

    @property
    def lapsed(self) -> bool:
        """Whether the leases may have expired since the last heartbeat, by either clock: others may hold them."""
        monotonic, wall_ms = self._renewed
        waited_s = self._clock.monotonic() - monotonic
        return waited_s >= self.settings.lease_s or self._clock.now_ms() - wall_ms >= self._lease_ms

    async def renew(self) -> None:
        """Sends a heartbeat, which renews all leases. Marks lost ones if they had expired before."""
        now, lapsed = self._now(), self.lapsed
        try:
            await self._store.heartbeat(self.agent_id)
        except NotFound:  # deregistered as dead: other agents may hold our leases by now
            for lease in list(self._leases.values()):
                self.mark_lost(lease)
            await self._register()
            return
        if lapsed and self._leases:
            leases = list(self._leases.values())
            self._mark_moved(leases, await self._store.list_partition_leases(agent_id=self.agent_id))
        self._renewed = now

    def _mark_moved(self, leases: Sequence[HeldLease], rows: Sequence[PartitionLease]) -> None:
        """Marks those lost that are not in the rows, which were read after the leases were acquired."""
        held = {(row.topic, row.partition_id, row.leader_agent_id, row.epoch) for row in rows}
        for lease in leases:
            if not lease.lost and (*lease.key, self.agent_id, lease.row.epoch) not in held:
                log.warning("lease lost", partition=repr(lease), agent=self.agent_id)
                self.mark_lost(lease)

    async def balance(self) -> None:
        """Acquires free partitions up to the agent's quota, and releases those beyond it.

        All agents compute the same quotas, so an agent that is at its quota has nothing to do and reads only its own
        leases. If a partition is free, another agent is below its quota.
        """
        if await self._at_quota():
            return
        wanted: list[Key] = []
        for topic in self.settings.topics or ():
            with suppress(NotFound):
                wanted += [(topic, row.partition_id) for row in await self._store.list_partitions(topic)]
        mine = list(self._leases.values())
        topics = {topic for topic, _ in wanted}
        rows: list[PartitionLease] = []
        for topic in topics:
            rows += await self._store.list_partition_leases(topic=topic)
        self._mark_moved([lease for lease in mine if lease.key[0] in topics], rows)
        agents = await self._store.list_agents(alive_within_ms=self._lease_ms)
        dead = await self._deregister_dead(agents, {row.leader_agent_id for row in rows})
        alive = {agent.agent_id for agent in agents if agent.group == self.settings.group} - dead
        holders = {(row.topic, row.partition_id): row.leader_agent_id for row in rows}
        plan = plan_rebalance(self.agent_id, alive, wanted, holders)
        for key in plan.release:
            lease = self._leases.get(key)
            if lease is not None and not lease.releasing:
                self._releases.start(lease, self._release_or_expire(lease))
        await self._acquire([key for key in plan.acquire if key not in self._leases])

    async def _at_quota(self) -> bool:
        """Whether the leases that we hold, which are compared with the registry's, are our quota."""
        topics = [await self._store.get_topic(name) for name in self.settings.topics or ()]
        counts = {topic.name: topic.partition_count for topic in topics if topic is not None}
        if not counts or any(lease.releasing for lease in self._leases.values()):
            return False
        mine = list(self._leases.values())
        self._mark_moved(mine, await self._store.list_partition_leases(agent_id=self.agent_id))
        agents = await self._store.list_agents(alive_within_ms=self._lease_ms)
        alive = {agent.agent_id for agent in agents if agent.group == self.settings.group}
        held = sum(topic in counts for topic, _ in self._leases)
        if held != quota(self.agent_id, alive, sum(counts.values())):
            return False
        return not await self._deregister_dead(agents, ())

    async def _deregister_dead(self, agents: Sequence[Agent], holders: Collection[str | None]) -> set[str]:
        """Deregisters others of our group, and holders of its partitions, that have sent no new heartbeat for several
        terms by our own clock. Returns their ids.

        The time in the row does not count, because the wall clock may have been set back. An agent that lives after
        all is fenced, and registers again.
        """
        others = [
            agent
            for agent in agents
            if agent.agent_id != self.agent_id and (agent.group == self.settings.group or agent.agent_id in holders)
        ]
        silent_s = self._heartbeats.seconds({agent.agent_id: agent.last_heartbeat for agent in others})
        dead = [agent for agent in others if silent_s[agent.agent_id] >= self._dead_after_s]
        for agent in dead:
            await self._deregister(agent)
        return {agent.agent_id for agent in dead}

    async def _deregister(self, agent: Agent) -> None:
        log.warning("dead agent deregistered", agent=repr(agent))
        with suppress(NotFound):  # by another agent, or it has sent a heartbeat
            await self._store.deregister_agent(agent.agent_id, last_heartbeat=agent.last_heartbeat)

    @property
    def _dead_after_s(self) -> float:
        return self.settings.lease_s * _DEAD_AFTER_TERMS

    @property
    def _lease_ms(self) -> int:
        return round(self.settings.lease_s * 1000)

    def _now(self) -> tuple[float, int]:
        return self._clock.monotonic(), self._clock.now_ms()

    async def _register(self) -> None:
        settings, now = self.settings, self._now()
        await self._store.register_agent(self.agent_id, settings.address, zone=settings.zone, group=settings.group)
        self._renewed = now

    async def _renew_forever(self) -> None:
        """After a failure the next heartbeat comes sooner."""
        wait_s = self.settings.renew_every_s
        while True:
            await self._clock.sleep(wait_s)
            try:
                await self.renew()
                if self.settings.topics is not None:
                    await self.balance()
                wait_s = self.settings.renew_every_s
            except RegistryError as error:  # the epochs keep this safe
                wait_s = self.settings.renew_every_s / 2
                log.warning("leases not renewed", agent=self.agent_id, error=str(error))

    async def _release_or_expire(self, lease: HeldLease) -> None:
        try:
            await self.release(lease)
        except RegistryError as error:
            log.warning("lease not released, it will expire", partition=repr(lease), error=str(error))

    async def _acquire_queued(self) -> None:
        while self._queue:
            keys, self._queue = self._queue, []
            results: dict[Key, HeldLease | Exception]
            try:
                results = await self._acquire_requested(keys)
            except Exception as error:
                results = dict.fromkeys(keys, error)
            for key in keys:
                request, result = self._requests.pop(key), results[key]
                if isinstance(result, HeldLease):
                    if not request.done():
                        request.set_result(result)
                else:
                    _fail(request, result)

    async def _acquire_requested(self, keys: Sequence[Key]) -> dict[Key, HeldLease | Exception]:
        results: dict[Key, HeldLease | Exception] = {}
        try:
            results |= await self._acquire(keys)
        except NotFound:
            known = {(row.topic, row.partition_id) for row in await self._store.get_partitions(keys)}
            for topic, number in set(keys) - known:
                missing = NotFound(f"partition {number} of topic {topic!r} does not exist: create it first")
                results[topic, number] = missing
            results |= await self._acquire(sorted(known))
        refused = [key for key in keys if key not in results]
        return results | await self._not_leader(refused) if refused else results

    async def _acquire(self, keys: Sequence[Key]) -> dict[Key, HeldLease]:
        """Returns those that were free. Reads the watermarks after the leases are acquired."""
        if not keys:
            return {}
        rows = await self._store.acquire_partition_leases(keys, self.agent_id, self._lease_ms)
        partitions = await self._store.get_partitions([(row.topic, row.partition_id) for row in rows])
        watermarks = {(row.topic, row.partition_id): row.high_watermark for row in partitions}
        acquired: dict[Key, HeldLease] = {}
        for row in rows:
            key = (row.topic, row.partition_id)
            if key in watermarks:
                earlier = self._leases.get(key)
                if earlier is not None:  # acquired twice: only the newer epoch is valid
                    self.mark_lost(earlier)
                acquired[key] = self._leases[key] = HeldLease(row, watermarks[key])
        return acquired

    async def _not_leader(self, keys: Sequence[Key]) -> dict[Key, NotLeader]:
        """Returns an error per partition, which names its holder. Each holder is read once."""
        holders = await self._holders(keys)
        asked = {holders.get(key) for key in keys}
        known = {holder: await self._refused_by(holder) for holder in asked if holder is not None}
        errors = {}
        for key in keys:
            holder = holders.get(key)
            why, name = ("was just released: try again", None) if holder is None else known[holder]
            errors[key] = NotLeader(f"partition {key[1]} of topic {key[0]!r} {why}", name)
        return errors

    async def _holders(self, keys: Sequence[Key]) -> dict[Key, str | None]:
        rows: list[PartitionLease | None] = []
        if len(keys) > _SINGLE_LOOKUPS:
            for topic in {topic for topic, _ in keys}:
                rows += await self._store.list_partition_leases(topic=topic)
        else:
            rows = [await self._store.get_partition_lease(*key) for key in keys]
        return {(row.topic, row.partition_id): row.leader_agent_id for row in rows if row is not None}

    async def _refused_by(self, holder: str) -> tuple[str, str | None]:
        """Returns why a lease of this agent is not ours, and the agent's id if it lives."""
        agent = await self._store.get_agent(holder)
        if agent is None:
            return "was just released: try again", None
        refused = self._refused.setdefault(agent.agent_id, UnchangedTimer(self._clock))
        if refused.seconds(agent.last_heartbeat) >= self._dead_after_s:
            del self._refused[agent.agent_id]
            await self._deregister(agent)
            return f"was left by agent {agent.agent_id!r}, which is dead: try again", None
        return f"is written by agent {agent.agent_id!r} at {agent.address}", agent.agent_id

    def _refuse_requests(self, error: NotLeader) -> None:
        requests, self._requests = self._requests, {}
        self._queue.clear()
        for request in requests.values():
            _fail(request, error)


def _fail(request: asyncio.Future[HeldLease], error: Exception) -> None:
    if not request.done():
        request.set_exception(error)
        request.exception()  # marks it as retrieved: the caller may be cancelled
