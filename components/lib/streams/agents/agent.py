"""`Agent`: a process that holds partitions.

    async with Agent(store, clock, AgentSettings(topics=["orders"])) as agent:
        held = await agent.hold("orders", 3)

The lease is taken first and the watermark read after it. From that moment on nobody else's registration succeeds, so
the watermark is exact. A process that is paused and wakes up too late believes that it still holds its partitions; the
epoch in its fences is what stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec
import structlog

from astha.clock import LoopClock
from components.lib.streams.agents.assignment import plan_rebalance
from components.lib.streams.agents.lease import HeldLease, Key
from components.lib.streams.agents.settings import AgentSettings
from components.lib.streams.errors import NotLeader
from registry.clock import Unchanged, UnchangedValues
from registry.contract import MetadataStore
from registry.errors import NotFound, RegistryError
from registry.models import PartitionLease

log = structlog.get_logger(__name__)

_RENEWED_AT_ONCE = 200

_DEAD_AFTER_TERMS = 5.0
"""A lease, or a heartbeat, that has not changed for so many terms of a lease by our own monotonic clock is dead."""


class Agent:
    """Its partitions are free for others as soon as it is closed, or when their leases run out."""

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
        self._held: dict[Key, HeldLease] = {}
        self._wanted: dict[Key, asyncio.Future[HeldLease]] = {}  # until they are answered
        self._queue: list[Key] = []  # of those, not asked for yet
        self._acquiring: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._upkeep: asyncio.Task[None] | None = None
        self._closing = False
        self._heartbeats = UnchangedValues[str, int](clock)
        self._others = UnchangedValues[Key, PartitionLease](clock)  # leases of other agents
        self._refused: dict[Key, Unchanged[PartitionLease]] = {}  # leases that we wanted and others have
        self.writer: object | None = None  # the one that gives offsets: two would give the same

    async def __aenter__(self) -> Self:
        await self._register()
        if self.settings.topics is not None:
            await self.balance()
        self._upkeep = asyncio.create_task(self._keep_up(), name=f"upkeep of {self.agent_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close writers first: what they have not registered yet is refused afterwards."""
        self._closing = True
        tasks = [task for task in (self._upkeep, self._acquiring, *self._releases) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refuse_wanted(NotLeader("the agent was closed: open another one"))
        for held in list(self._held.values()):
            self.lose(held)
        try:
            await self._store.deregister_agent(self.agent_id)
        except RegistryError as failure:
            log.warning("leases are left to run out", agent=self.agent_id, error=str(failure))

    @property
    def held(self) -> list[HeldLease]:
        """Of all partitions held now, by topic and number."""
        return [self._held[key] for key in sorted(self._held)]

    def find(self, topic: str, partition_id: int) -> HeldLease | None:
        held = self._held.get((topic, partition_id))
        return None if held is None or held.leaving else held

    async def hold(self, topic: str, partition_id: int) -> HeldLease:
        """The partition, taken if it is free. NotLeader names the holder; NotFound: no such partition.

        What several callers want at the same time is asked for together.
        """
        held = self.find(topic, partition_id)
        if held is not None:
            return held
        key = (topic, partition_id)
        if key in self._held:
            raise NotLeader(f"partition {partition_id} of topic {topic!r} is moving to another agent: try again")
        if self._closing:
            raise NotLeader(f"agent {self.agent_id!r} is closed: open another one")
        word = self._wanted.get(key)
        if word is None:
            word = self._wanted[key] = asyncio.get_running_loop().create_future()
            self._queue.append(key)
            if self._acquiring is None or self._acquiring.done():
                self._acquiring = asyncio.create_task(self._acquire_wanted(), name=f"leases of {self.agent_id}")
        return await asyncio.shield(word)

    def lose(self, held: HeldLease) -> None:
        """It must not be used any more: who wants the partition acquires it anew, in another epoch."""
        held.lost = True
        if self._held.get(held.key) is held:
            del self._held[held.key]

    async def release(self, held: HeldLease) -> None:
        """After what is being written, or after a while. Others can have it then."""
        held.leaving = True
        try:
            await asyncio.wait_for(held.idle(), self.settings.drain_s)
        except TimeoutError:
            log.warning("a partition leaves its writers behind", partition=repr(held))
        self.lose(held)
        await self._store.release_partition_lease(held.lease)

    async def renew(self, over_s: float = 0.0) -> None:
        """Heartbeat and leases, some at a time, spread over so long. What is no longer ours is lost."""
        try:
            await self._store.heartbeat(self.agent_id)
        except NotFound:  # somebody took us for dead: our leases are free, and may be others' by now
            for held in list(self._held.values()):
                self.lose(held)
            await self._register()
            return
        helds = list(self._held.values())
        starts = range(0, len(helds), _RENEWED_AT_ONCE)
        for start in starts:
            if start and over_s:
                await self._clock.sleep(over_s / len(starts))
            await self._renew([held for held in helds[start : start + _RENEWED_AT_ONCE] if not held.lost])

    async def _renew(self, helds: Sequence[HeldLease]) -> None:
        """A registration waits for the renewal of its lease, hence for all that are renewed with it."""
        leases = await self._store.renew_partition_leases([held.lease for held in helds], self._lease_ms)
        renewed = {(lease.topic, lease.partition_id): lease for lease in leases}
        for held in helds:
            lease = renewed.get(held.key)
            if lease is not None:
                held.lease = lease
            elif not held.lost:
                log.warning("a partition was lost", partition=repr(held), agent=self.agent_id)
                self.lose(held)

    async def balance(self) -> None:
        """Takes free partitions up to its share of the topics; gives away what it has beyond that."""
        wanted: list[Key] = []
        for topic in self.settings.topics or ():
            with suppress(NotFound):
                wanted += [(topic, row.partition_id) for row in await self._store.list_partitions(topic)]
        agents = await self._store.list_agents(alive_within_ms=self._lease_ms, group=self.settings.group)
        silent_s = self._heartbeats.seconds({agent.agent_id: agent.last_heartbeat for agent in agents})
        alive = {self.agent_id, *(agent_id for agent_id, seconds in silent_s.items() if seconds < self._dead_after_s)}
        leases: list[PartitionLease] = []
        for topic in {topic for topic, _ in wanted}:
            leases += await self._store.list_partition_leases(topic=topic)
        await self._free_dead(leases)
        share = plan_rebalance(
            self.agent_id,
            alive,
            wanted,
            {(lease.topic, lease.partition_id): lease.leader_agent_id for lease in leases},
        )
        for key in share.surplus:
            held = self._held.get(key)
            if held is not None and not held.leaving:
                task = asyncio.create_task(self._release_quietly(held), name=f"release of {held!r}")
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)
        await self._take([key for key in share.free if key not in self._held])

    async def _free_dead(self, leases: list[PartitionLease]) -> None:
        """Those that have not changed for several terms by our own clock are nobody's, whenever they say that they
        expire: the wall clock may have been set back. Replaces them in the list. A holder that lives after all is
        fenced, because the lease is no longer its own.
        """
        others = {
            (lease.topic, lease.partition_id): lease
            for lease in leases
            if lease.leader_agent_id not in (None, self.agent_id)
        }
        unchanged_s = self._others.seconds(others)
        for place, lease in enumerate(leases):
            if unchanged_s.get((lease.topic, lease.partition_id), 0.0) >= self._dead_after_s:
                log.warning("a lease that did not change is given up", lease=repr(lease))
                await self._store.release_partition_lease(lease)
                leases[place] = msgspec.structs.replace(lease, leader_agent_id=None)

    @property
    def _dead_after_s(self) -> float:
        return self.settings.lease_s * _DEAD_AFTER_TERMS

    @property
    def _lease_ms(self) -> int:
        return round(self.settings.lease_s * 1000)

    async def _register(self) -> None:
        chosen = self.settings
        await self._store.register_agent(self.agent_id, chosen.address, zone=chosen.zone, group=chosen.group)

    async def _keep_up(self) -> None:
        """Each lease once in ``renew_every_s``. Many are spread over half of that: others wait for the loop meanwhile.
        After a failure they are renewed sooner and in one go, or the last of them would run out.
        """
        half_s = self.settings.renew_every_s / 2
        over_s, rest_s = half_s, 2 * half_s
        while True:
            await self._clock.sleep(rest_s)
            begun = self._clock.monotonic()
            try:
                await self.renew(over_s)
                if self.settings.topics is not None:
                    await self.balance()
                over_s, rest_s = half_s, max(half_s, 2 * half_s - (self._clock.monotonic() - begun))
            except RegistryError as error:  # epochs keep us honest; the next time may succeed
                over_s, rest_s = 0.0, half_s
                log.warning("leases could not be renewed", agent=self.agent_id, error=str(error))

    async def _release_quietly(self, held: HeldLease) -> None:
        try:
            await self.release(held)
        except RegistryError as error:
            log.warning("a lease is left to run out", partition=repr(held), error=str(error))

    async def _acquire_wanted(self) -> None:
        while self._queue:
            keys, self._queue = self._queue, []
            try:
                answers = await self._answers(keys)
            except Exception as error:
                answers = dict.fromkeys(keys, error)
            for key in keys:
                word, answer = self._wanted.pop(key), answers[key]
                if isinstance(answer, HeldLease):
                    if not word.done():
                        word.set_result(answer)
                else:
                    _fail(word, answer)

    async def _answers(self, keys: Sequence[Key]) -> dict[Key, HeldLease | Exception]:
        answers: dict[Key, HeldLease | Exception] = {}
        try:
            answers |= await self._take(keys)
        except NotFound:
            known = {(row.topic, row.partition_id) for row in await self._store.get_partitions(keys)}
            for topic, number in set(keys) - known:
                missing = NotFound(f"partition {number} of topic {topic!r} does not exist: create it first")
                answers[topic, number] = missing
            answers |= await self._take(sorted(known))
        for key in keys:
            if key not in answers:
                answers[key] = await self._not_leader(key)
        return answers

    async def _take(self, keys: Sequence[Key]) -> dict[Key, HeldLease]:
        """Those that can be had. Leases first, watermarks after that."""
        if not keys:
            return {}
        leases = await self._store.acquire_partition_leases(keys, self.agent_id, self._lease_ms)
        rows = await self._store.get_partitions([(lease.topic, lease.partition_id) for lease in leases])
        watermarks = {(row.topic, row.partition_id): row.high_watermark for row in rows}
        taken: dict[Key, HeldLease] = {}
        for lease in leases:
            key = (lease.topic, lease.partition_id)
            if key in watermarks:
                before = self._held.get(key)
                if before is not None:  # acquired twice: the newer epoch is what counts
                    self.lose(before)
                taken[key] = self._held[key] = HeldLease(lease, watermarks[key])
                self._refused.pop(key, None)
        return taken

    async def _not_leader(self, key: Key) -> NotLeader:
        lease = await self._store.get_partition_lease(*key)
        name = f"partition {key[1]} of topic {key[0]!r}"
        if lease is None or lease.leader_agent_id is None:
            return NotLeader(f"{name} was just released: try again")
        refused = self._refused.setdefault(key, Unchanged(self._clock))
        if refused.seconds(lease) >= self._dead_after_s:
            log.warning("a lease that did not change is given up", lease=repr(lease))
            await self._store.release_partition_lease(lease)
            return NotLeader(f"{name} was left by agent {lease.leader_agent_id!r}, which is dead: try again")
        agent = await self._store.get_agent(lease.leader_agent_id)
        address = "" if agent is None else f" at {agent.address}"
        return NotLeader(f"{name} is written by agent {lease.leader_agent_id!r}{address}", lease.leader_agent_id)

    def _refuse_wanted(self, error: NotLeader) -> None:
        wanted, self._wanted = self._wanted, {}
        self._queue.clear()
        for word in wanted.values():
            _fail(word, error)


def _fail(word: asyncio.Future[HeldLease], error: Exception) -> None:
    if not word.done():
        word.set_exception(error)
        word.exception()  # seen: whoever waited may have gone
