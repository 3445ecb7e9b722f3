"""`GroupConsumer`: a member of a consumer group, which reads its part of a topic's partitions.

    async with GroupConsumer(read_context.prefetcher, "billing", "orders") as consumer:
        while (polled := await consumer.poll(wait_s=10)) is not None:
            ...
            await consumer.commit()

Each partition is read by one member: the holder of the group's lease. A member that joins, leaves or dies moves few
partitions. A member commits its offsets before it hands a partition over; a member that was paused beyond its lease can
no longer commit. So only uncommitted records are delivered again, and none is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from astha.clock import LoopClock
from components.lib.streams.agents import AgentSettings, HeldLease, LeaseAgent
from components.lib.streams.consumer import Consumer, PolledRecords
from components.lib.streams.offsets import GroupOffsets, OffsetReset
from components.lib.streams.reader.prefetch import Prefetcher
from components.lib.streams.reader.reader import MAX_BYTES
from registry.contract import MetadataStore
from registry.errors import Fenced
from registry.forwarding import ForwardingStore
from registry.inputs import OffsetDraft
from registry.models import GroupLease, PartitionLease

log = structlog.get_logger(__name__)

LEASE_S = 10.0
"""How long the partitions of a dead member wait for another one."""

_ASSIGNMENT_CHECK_S = 0.25  # between checks of the leases held, without a call to the registry


class GroupConsumer:
    """`reset` as for `Consumer`. `stop_offsets` cover all partitions of the topic, whichever member reads them."""

    def __init__(
        self,
        prefetcher: Prefetcher,
        group: str,
        topic: str,
        *,
        reset: OffsetReset | None = None,
        stop_offsets: Mapping[int, int] | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.group, self.topic = group, topic
        self._clock: LoopClock = prefetcher.reader.clock
        self._store: MetadataStore = prefetcher.reader.change_feed.store
        self._groups = GroupOffsets(self._store)
        self._stop_offsets = dict(stop_offsets or {})
        self._consumer = Consumer(prefetcher, topic, {}, reset=reset, stop_offsets=stop_offsets)
        settings = AgentSettings(
            group=f"consumers of {topic} for {group}",
            topics=[topic],
            lease_s=lease_s,
            renew_every_s=lease_s / 4,
            drain_timeout_s=lease_s / 2,
        )
        self.agent = LeaseAgent(GroupLeaseStore(self._store, group), self._clock, settings)
        self._assigned: dict[int, HeldLease] = {}
        self._committed: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        """Acquires free partitions at once."""
        await self._store.ensure_consumer_group(self.group)
        await self.agent.__aenter__()
        try:
            await self._consumer.__aenter__()
            await self._sync_assignment()
        except BaseException:
            await self.agent.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits nothing. Its partitions are released at once."""
        await self._consumer.__aexit__(kind, error, trace)
        await self.agent.__aexit__(kind, error, trace)

    @property
    def partitions(self) -> list[int]:
        """The partitions that this member reads now."""
        return sorted(self._assigned)

    @property
    def skipped(self) -> int:
        return self._consumer.skipped

    async def poll(
        self, *, max_records: int | None = None, max_bytes: int = MAX_BYTES, wait_s: float = 0.0
    ) -> PolledRecords | None:
        """Same as `Consumer.poll`. Commits polled records of partitions that have to be handed over: finish processing
        first.

        Call it more often than half a lease term. Otherwise partitions move without that commit, and their records are
        delivered again.
        """
        end = self._clock.monotonic() + wait_s
        while True:
            await self._sync_assignment()
            left = end - self._clock.monotonic()
            started = self._clock.monotonic()
            pause = max(0.0, min(left, _ASSIGNMENT_CHECK_S))
            found = await self._consumer.poll(max_records=max_records, max_bytes=max_bytes, wait_s=pause)
            if found is not None:
                if self._assigned[found.partition_id].lost:
                    continue  # lost while the records were fetched
                return found
            if left <= 0:
                return None
            # The consumer returns at once if it has no partitions.
            await self._clock.sleep(max(0.0, started + pause - self._clock.monotonic()))

    async def commit(self) -> None:
        """Commits the offsets behind all polled records, except for partitions that have been lost."""
        await self._commit(list(self._assigned))

    async def finished(self) -> bool:
        """Whether the group, all members together, has committed everything up to the stop offsets."""
        if any(offset < self._stop_offsets.get(number, 0) for number, offset in self._consumer.offsets.items()):
            return False
        await self.commit()
        offsets = await self._groups.resume_offsets(self.group, self.topic, list(self._stop_offsets))
        return all(offsets[number] >= stop for number, stop in self._stop_offsets.items())

    async def _sync_assignment(self) -> None:
        """Makes the consumer read exactly the partitions whose leases are held."""
        if self.agent.lapsed:
            await self.agent.renew()  # possibly paused: do not read on what others have acquired
        leases = {lease.key[1]: lease for lease in self.agent.leases if not lease.releasing}
        revoked = [number for number, lease in self._assigned.items() if leases.get(number) is not lease]
        if revoked:
            await self._commit([number for number in revoked if not self._assigned[number].lost])
            for number in revoked:
                await self._revoke(number)
        new = [number for number in leases if number not in self._assigned]
        if new:
            offsets = await self._groups.resume_offsets(self.group, self.topic, new)
            for number in new:
                leases[number].add_users()  # until it is revoked
                self._assigned[number] = leases[number]
                self._committed[number] = offsets[number]
            await self._consumer.assign({**self._consumer.offsets, **offsets})
            log.info("partitions assigned", group=self.group, topic=self.topic, partitions=new)

    async def _revoke(self, number: int) -> None:
        lease = self._assigned.pop(number)
        self._committed.pop(number, None)
        offsets = self._consumer.offsets
        offsets.pop(number)
        await self._consumer.assign(offsets)
        lease.remove_users()
        log.info("partition revoked", group=self.group, topic=self.topic, partition=number)

    async def _commit(self, numbers: Sequence[int]) -> None:
        """Commits partitions that have moved. One that was lost does not fail the others."""
        offsets = self._consumer.offsets
        moved = {number: offsets[number] for number in numbers if offsets[number] != self._committed[number]}
        while moved:
            leases = [_as_group_lease(self.group, self._assigned[number].row) for number in moved]
            drafts = [OffsetDraft(self.topic, number, offset) for number, offset in moved.items()]
            try:
                await self._store.commit_offsets(self.group, drafts, leases=leases)
            except Fenced as error:
                for name in error.names:
                    number = int(name.rpartition("/")[2])
                    moved.pop(number)
                    self.agent.mark_lost(self._assigned[number])
                log.warning("offset commit fenced", group=self.group, error=str(error))
            else:
                self._committed.update(moved)
                return


class GroupLeaseStore(ForwardingStore):
    """Presents a group's leases to an agent as partition leases."""

    def __init__(self, inner: MetadataStore, group: str) -> None:
        super().__init__(inner)
        self._group = group

    async def acquire_partition_leases(
        self, partitions: Sequence[tuple[str, int]], agent_id: str, ttl_ms: int
    ) -> list[PartitionLease]:
        leases = await self.inner.acquire_group_leases(self._group, partitions, agent_id, ttl_ms)
        return [_as_partition_lease(lease) for lease in leases]

    async def release_partition_lease(self, lease: PartitionLease) -> bool:
        return await self.inner.release_group_lease(_as_group_lease(self._group, lease))

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        leases = await self.inner.list_group_leases(self._group, topic=topic)
        return next((_as_partition_lease(lease) for lease in leases if lease.partition_id == partition_id), None)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        leases = await self.inner.list_group_leases(self._group, topic=topic)
        return [_as_partition_lease(lease) for lease in leases if agent_id in (None, lease.member_id)]


def _as_partition_lease(lease: GroupLease) -> PartitionLease:
    return PartitionLease(
        lease.topic, lease.partition_id, lease.member_id, lease.expires_at, lease.acquired_at, lease.epoch
    )


def _as_group_lease(group: str, lease: PartitionLease) -> GroupLease:
    return GroupLease(
        group, lease.topic, lease.partition_id, lease.leader_agent_id, lease.expires_at, lease.acquired_at, lease.epoch
    )
