"""`Member`: one consumer of a group, with its share of a topic's partitions.

    async with Member(reading.ahead, "billing", "orders") as member:
        while (polled := await member.poll(wait_s=10)) is not None:
            ...
            await member.commit()

Each partition has one reader: whoever holds the group's lease of it. A member that joins, ends or dies moves a few of
them. Whoever gives one away has committed what it was told of it before another begins; whoever was paused for too long
can't commit any more. So a record comes again only if it was not committed, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from astha.clock import LoopClock
from components.lib.streams.agents import Agent, AgentSettings, HeldLease
from components.lib.streams.consumer import Consumer, PolledRecords
from components.lib.streams.offsets import ConsumerGroups, OffsetReset
from components.lib.streams.reader.prefetch import Prefetcher
from components.lib.streams.reader.reader import MAX_BYTES
from registry.contract import MetadataStore
from registry.errors import Fenced
from registry.forwarding import ForwardingStore
from registry.inputs import OffsetDraft
from registry.models import GroupLease, PartitionLease

log = structlog.get_logger(__name__)

LEASE_S = 10.0
"""How long the partitions of a member that died wait for another."""

_LOOK_S = 0.25  # between two looks at what was given or is to be given away; asks nobody


class GroupConsumer:
    """``stops`` and ``reset`` as for a `Consumer`; the stops are of all partitions, whoever reads them."""

    def __init__(
        self,
        ahead: Prefetcher,
        group: str,
        topic: str,
        *,
        reset: OffsetReset | None = None,
        stops: Mapping[int, int] | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.group, self.topic = group, topic
        self._clock: LoopClock = ahead.reader.clock
        self._store: MetadataStore = ahead.reader.feed.store
        self._groups = ConsumerGroups(self._store)
        self._stops = dict(stops or {})
        self._consumer = Consumer(ahead, topic, {}, reset=reset, stops=stops)
        settings = AgentSettings(
            group=f"consumers of {topic} for {group}",
            topics=[topic],
            lease_s=lease_s,
            renew_every_s=lease_s / 4,
            drain_s=lease_s / 2,
        )
        self.agent = Agent(GroupLeaseStore(self._store, group), self._clock, settings)
        self._reading: dict[int, HeldLease] = {}
        self._committed: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        """The share that is free is its own at once."""
        await self._store.ensure_consumer_group(self.group)
        await self.agent.__aenter__()
        try:
            await self._consumer.__aenter__()
            await self._adjust()
        except BaseException:
            await self.agent.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits nothing. Its partitions are free for others at once."""
        await self._consumer.__aexit__(kind, error, trace)
        await self.agent.__aexit__(kind, error, trace)

    @property
    def partitions(self) -> list[int]:
        """Those that it reads just now."""
        return sorted(self._reading)

    @property
    def skipped(self) -> int:
        return self._consumer.skipped

    async def poll(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> PolledRecords | None:
        """As `Consumer.poll`. What it has answered before of a partition that has to go is committed: be done with it.

        Call it more often than half a lease, or partitions go to others without that, and their records come again.
        """
        end = self._clock.monotonic() + wait_s
        while True:
            await self._adjust()
            left = end - self._clock.monotonic()
            started = self._clock.monotonic()
            pause = max(0.0, min(left, _LOOK_S))
            found = await self._consumer.poll(max_records=max_records, max_bytes=max_bytes, wait_s=pause)
            if found is not None:
                if self._reading[found.partition_id].lost:
                    continue  # to another, while it was fetched
                return found
            if left <= 0:
                return None
            # With nothing to wait for it has not waited.
            await self._clock.sleep(max(0.0, started + pause - self._clock.monotonic()))

    async def commit(self) -> None:
        """What `poll` has answered so far is done. What belongs to others by now is theirs."""
        await self._commit(list(self._reading))

    async def finished(self) -> bool:
        """Whether the group, whoever its members are, has committed everything up to the stops."""
        if any(offset < self._stops.get(number, 0) for number, offset in self._consumer.offsets.items()):
            return False
        await self.commit()
        offsets = await self._groups.resume(self.group, self.topic, list(self._stops))
        return all(offsets[number] >= stop for number, stop in self._stops.items())

    async def _adjust(self) -> None:
        """Reads what it holds, and nothing else."""
        now = self._clock.now_ms()
        if any(held.lease.expires_at <= now for held in self.agent.held):
            await self.agent.renew()  # paused perhaps: what others have taken must not be read on
        held = {one.key[1]: one for one in self.agent.held if not one.leaving}
        gone = [number for number, one in self._reading.items() if held.get(number) is not one]
        if gone:
            await self._commit([number for number in gone if not self._reading[number].lost])
            for number in gone:
                await self._forget(number)
        new = [number for number in held if number not in self._reading]
        if new:
            offsets = await self._groups.resume(self.group, self.topic, new)
            for number in new:
                held[number].use()  # until we are done with it
                self._reading[number] = held[number]
                self._committed[number] = offsets[number]
            await self._consumer.assign({**self._consumer.offsets, **offsets})
            log.info("partitions came", group=self.group, topic=self.topic, partitions=new)

    async def _forget(self, number: int) -> None:
        held = self._reading.pop(number)
        self._committed.pop(number, None)
        offsets = self._consumer.offsets
        offsets.pop(number)
        await self._consumer.assign(offsets)
        held.leave()
        log.info("a partition went", group=self.group, topic=self.topic, partition=number)

    async def _commit(self, numbers: Sequence[int]) -> None:
        """Those that have moved. A partition that is another's by now costs the others nothing."""
        offsets = self._consumer.offsets
        moved = {number: offsets[number] for number in numbers if offsets[number] != self._committed[number]}
        while moved:
            leases = [_of_group(self.group, self._reading[number].lease) for number in moved]
            drafts = [OffsetDraft(self.topic, number, offset) for number, offset in moved.items()]
            try:
                await self._store.commit_offsets(self.group, drafts, leases=leases)
            except Fenced as error:
                for name in error.names:
                    number = int(name.rpartition("/")[2])
                    moved.pop(number)
                    self.agent.lose(self._reading[number])
                log.warning("a commit came too late", group=self.group, error=str(error))
            else:
                self._committed.update(moved)
                return


class GroupLeaseStore(ForwardingStore):
    """A group's leases, where an agent looks for those of writers."""

    def __init__(self, inner: MetadataStore, group: str) -> None:
        super().__init__(inner)
        self._group = group

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        leases = await self.inner.acquire_group_leases(self._group, partitions, agent_id, ttl_ms)
        return [_of_partition(lease) for lease in leases]

    async def renew_partition_leases(self, leases: Sequence[PartitionLease], ttl_ms: int) -> list[PartitionLease]:
        given = [_of_group(self._group, lease) for lease in leases]
        return [_of_partition(lease) for lease in await self.inner.renew_group_leases(given, ttl_ms)]

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        return await self.inner.release_group_lease(_of_group(self._group, lease))

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        leases = await self.inner.list_group_leases(self._group, topic=topic)
        return next((_of_partition(lease) for lease in leases if lease.partition_id == partition_id), None)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        leases = await self.inner.list_group_leases(self._group, topic=topic)
        return [_of_partition(lease) for lease in leases if agent_id in (None, lease.member_id)]


def _of_partition(lease: GroupLease) -> PartitionLease:
    return PartitionLease(
        lease.topic, lease.partition_id, lease.member_id, lease.expires_at, lease.acquired_at, lease.epoch
    )


def _of_group(group: str, lease: PartitionLease) -> GroupLease:
    return GroupLease(
        group, lease.topic, lease.partition_id, lease.leader_agent_id, lease.expires_at, lease.acquired_at, lease.epoch
    )
