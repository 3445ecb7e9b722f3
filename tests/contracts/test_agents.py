"""Agents and partition leases: acquisition, renewal, release and fencing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict, Fenced, Invalid, NotFound
from registry.inputs import Fence
from registry.models import Agent, PartitionLease
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import segment

TTL = 1_000


@pytest.fixture(autouse=True)
async def agents(store: MetadataStore) -> None:
    await store.create_topic("orders", 8)
    await store.register_agent("agent-1", "host:1")
    await store.register_agent("agent-2", "host:2")


def _fence(lease: PartitionLease) -> Fence:
    return Fence(lease.topic, lease.partition_id, lease.leader_agent_id or "", lease.epoch)


class TestAgents:
    async def test_all_columns_of_an_agent_are_stored(self, store: MetadataStore, clock: ManualClock) -> None:
        clock.advance(10)
        made = await store.register_agent("agent-3", "host:3", zone="a", group="g", metadata={"cpu": 4})
        assert made == Agent("agent-3", "host:3", "a", "g", clock.now_ms(), clock.now_ms(), made.metadata)
        assert made.metadata == '{"cpu":4}'
        assert await store.get_agent("agent-3") == made
        assert await store.get_agent("agent-4") is None

    async def test_a_known_id_is_registered_again(self, store: MetadataStore, clock: ManualClock) -> None:
        lease = await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        clock.advance(10)
        again = await store.register_agent("agent-1", "elsewhere:1", metadata={"a": 1})
        assert await store.get_agent("agent-1") == again
        assert again.started_at == clock.now_ms()
        assert await store.get_partition_lease("orders", 0) == lease

    async def test_a_heartbeat_keeps_an_agent_alive(self, store: MetadataStore, clock: ManualClock) -> None:
        clock.advance(500)
        await store.heartbeat("agent-2")
        clock.advance(500)
        alive = [agent.agent_id for agent in await store.list_agents(alive_within_ms=1_000)]
        assert alive == ["agent-1", "agent-2"]
        alive = [agent.agent_id for agent in await store.list_agents(alive_within_ms=999)]
        assert alive == ["agent-2"]
        assert await store.list_agents(alive_within_ms=0) == []
        assert len(await store.list_agents()) == 2
        assert len(await store.list_agents(alive_within_ms=2**63 - 1)) == 2

    async def test_agents_are_listed_by_group(self, store: MetadataStore, clock: ManualClock) -> None:
        await store.register_agent("agent-0", "host:0", group="fast")
        assert [agent.agent_id for agent in await store.list_agents(group="fast")] == ["agent-0"]
        assert [agent.agent_id for agent in await store.list_agents(group="")] == ["agent-1", "agent-2"]
        clock.advance(1)
        assert await store.list_agents(group="fast", alive_within_ms=0) == []

    async def test_unknown_agents_are_named(self, store: MetadataStore) -> None:
        async with unchanged(store):
            with pytest.raises(NotFound, match="agent-9"):
                await store.heartbeat("agent-9")
            with pytest.raises(NotFound, match="agent-9"):
                await store.deregister_agent("agent-9")


class TestLeases:
    async def test_a_free_lease_can_be_acquired(self, store: MetadataStore, clock: ManualClock) -> None:
        now = clock.now_ms()
        lease = await store.acquire_partition_lease("orders", 3, "agent-1", TTL)
        assert lease == PartitionLease("orders", 3, "agent-1", now + TTL, now, 1)
        assert await store.get_partition_lease("orders", 3) == lease
        assert await store.get_partition_lease("orders", 4) is None

    async def test_a_held_lease_is_a_conflict_that_names_the_holder(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        clock.advance(TTL - 1)
        async with unchanged(store):
            with pytest.raises(Conflict, match="agent-1") as caught:
                await store.acquire_partition_lease("orders", 0, "agent-2", TTL)
        assert caught.value.names == ("agent-1",)
        assert not isinstance(caught.value, Fenced)

    async def test_epochs_only_grow(self, store: MetadataStore, clock: ManualClock) -> None:
        """By acquiring again, and after expiry, release and deregistration."""
        epochs = [(await store.acquire_partition_lease("orders", 0, "agent-1", TTL)).epoch]
        epochs.append((await store.acquire_partition_lease("orders", 0, "agent-1", TTL)).epoch)
        clock.advance(TTL)
        taken = await store.acquire_partition_lease("orders", 0, "agent-2", TTL)
        epochs.append(taken.epoch)
        assert await store.release_partition_lease(taken)
        epochs.append((await store.acquire_partition_lease("orders", 0, "agent-1", TTL)).epoch)
        await store.deregister_agent("agent-1")
        free = await store.get_partition_lease("orders", 0)
        assert free is not None
        assert (free.leader_agent_id, free.epoch) == (None, epochs[-1])
        epochs.append((await store.acquire_partition_lease("orders", 0, "agent-2", TTL)).epoch)
        assert epochs == [1, 2, 3, 4, 5]

    async def test_one_of_many_concurrent_agents_acquires_a_lease(
        self, store: MetadataStore, other: MetadataStore
    ) -> None:
        takers = [f"taker-{number}" for number in range(8)]
        for taker in takers:
            await store.register_agent(taker, "host:1")
        results = await asyncio.gather(
            *(
                (store, other)[number % 2].acquire_partition_lease("orders", 0, taker, TTL)
                for number, taker in enumerate(takers)
            ),
            return_exceptions=True,
        )
        (winner,) = (result for result in results if isinstance(result, PartitionLease))
        assert winner.epoch == 1
        assert sum(isinstance(result, Conflict) for result in results) == 7
        assert await store.get_partition_lease("orders", 0) == winner

    async def test_one_of_many_concurrent_agents_acquires_an_expired_lease(
        self, store: MetadataStore, other: MetadataStore, clock: ManualClock
    ) -> None:
        await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        clock.advance(TTL)
        await store.register_agent("agent-3", "host:3")
        results = await asyncio.gather(
            store.acquire_partition_lease("orders", 0, "agent-2", TTL),
            other.acquire_partition_lease("orders", 0, "agent-3", TTL),
            return_exceptions=True,
        )
        (winner,) = (result for result in results if isinstance(result, PartitionLease))
        assert winner.epoch == 2
        assert sum(isinstance(result, Conflict) for result in results) == 1

    async def test_a_bulk_acquisition_takes_the_available_leases(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        held = await store.acquire_partition_lease("orders", 1, "agent-2", TTL)
        wanted = [("orders", number) for number in (3, 1, 0, 3)]
        taken = await store.acquire_partition_leases(wanted, "agent-1", TTL)
        assert [(lease.partition_id, lease.epoch) for lease in taken] == [(0, 1), (3, 1)]
        assert await store.get_partition_lease("orders", 1) == held
        assert await store.acquire_partition_leases([], "agent-1", TTL) == []
        assert await store.list_partition_leases(agent_id="agent-1") == taken
        assert len(await store.list_partition_leases()) == 3
        assert len(await store.list_partition_leases(topic="orders")) == 3
        assert await store.list_partition_leases(topic="other") == []

    async def test_a_heartbeat_renews_all_leases_of_its_agent(self, store: MetadataStore, clock: ManualClock) -> None:
        """Each for its own term. No row of a lease changes."""
        keys = [("orders", number) for number in range(4)]
        leases = await store.acquire_partition_leases(keys[:3], "agent-1", TTL)
        leases += await store.acquire_partition_leases(keys[3:], "agent-1", 2 * TTL)
        for _ in range(5):
            clock.advance(TTL - 1)
            await store.heartbeat("agent-1")
            assert await store.acquire_partition_leases(keys, "agent-2", TTL) == []
        assert await store.list_partition_leases() == leases
        clock.advance(TTL - 1)
        assert await store.acquire_partition_leases(keys, "agent-2", TTL) == []
        clock.advance(1)
        taken = await store.acquire_partition_leases(keys, "agent-2", TTL)
        assert [(lease.partition_id, lease.epoch) for lease in taken] == [(0, 2), (1, 2), (2, 2)]
        clock.advance(TTL)
        assert len(await store.acquire_partition_leases(keys, "agent-2", TTL)) == 4

    async def test_a_lease_acquired_after_the_last_heartbeat_has_its_whole_term(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        clock.advance(10 * TTL)
        await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        clock.advance(TTL - 1)
        with pytest.raises(Conflict, match="agent-1"):
            await store.acquire_partition_lease("orders", 0, "agent-2", TTL)
        clock.advance(1)
        await store.acquire_partition_lease("orders", 0, "agent-2", TTL)

    async def test_a_late_heartbeat_renews_what_was_not_taken_over(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        keys = [("orders", 0), ("orders", 1)]
        kept, lost = await store.acquire_partition_leases(keys, "agent-1", TTL)
        clock.advance(5 * TTL)
        taken = await store.acquire_partition_lease("orders", 1, "agent-2", TTL)
        await store.heartbeat("agent-1")
        assert await store.acquire_partition_leases(keys, "agent-2", TTL) == [
            msgspec.structs.replace(taken, epoch=lost.epoch + 2)
        ]
        assert await store.list_partition_leases(agent_id="agent-1") == [kept]

    async def test_a_dead_agent_loses_everything_in_one_statement(
        self, store: MetadataStore, other: MetadataStore, clock: ManualClock
    ) -> None:
        """An agent that has sent another heartbeat since it was judged is not dead."""
        keys = [("orders", number) for number in range(8)]
        held = await store.acquire_partition_leases(keys, "agent-1", TTL)
        seen = await other.get_agent("agent-1")
        assert seen is not None
        clock.advance(1)
        await store.heartbeat("agent-1")
        async with unchanged(store):
            with pytest.raises(NotFound, match="agent-1"):
                await other.deregister_agent("agent-1", last_heartbeat=seen.last_heartbeat)
        await other.deregister_agent("agent-1", last_heartbeat=seen.last_heartbeat + 1)
        with pytest.raises(NotFound, match="agent-1"):
            await store.heartbeat("agent-1")
        taken = await other.acquire_partition_leases(keys, "agent-2", TTL)
        assert [lease.epoch for lease in taken] == [lease.epoch + 1 for lease in held]

    async def test_a_paused_holder_is_fenced(self, store: MetadataStore, clock: ManualClock) -> None:
        old = await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        clock.advance(TTL)
        await store.acquire_partition_lease("orders", 0, "agent-2", TTL)
        async with unchanged(store):
            with pytest.raises(Fenced, match="partition 0 of topic 'orders'"):
                await store.add_segment(segment(0), fence=_fence(old))
            assert await store.release_partition_lease(old) is False
        clock.advance(TTL)
        again = await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        async with unchanged(store):
            with pytest.raises(Fenced):  # the same agent, an older epoch
                await store.add_segment(segment(0), fence=_fence(old))
            assert await store.release_partition_lease(old) is False
        assert await store.release_partition_lease(again) is True

    async def test_a_released_lease_cannot_be_used_or_released_again(self, store: MetadataStore) -> None:
        lease = await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
        assert await store.release_partition_lease(lease) is True
        released = await store.get_partition_lease("orders", 0)
        assert released is not None
        assert released.leader_agent_id is None
        async with unchanged(store):
            assert await store.release_partition_lease(lease) is False
            assert await store.release_partition_lease(released) is False
            with pytest.raises(Fenced):
                await store.add_segment(segment(0), fence=_fence(lease))

    async def test_what_is_missing_is_named_and_nothing_written(self, store: MetadataStore) -> None:
        async with unchanged(store):
            with pytest.raises(NotFound, match="agent-9"):
                await store.acquire_partition_lease("orders", 0, "agent-9", TTL)
            with pytest.raises(NotFound, match="partition 8 of topic 'orders'"):
                await store.acquire_partition_leases([("orders", 0), ("orders", 8)], "agent-1", TTL)
            with pytest.raises(NotFound, match="nowhere"):
                await store.acquire_partition_lease("nowhere", 0, "agent-1", TTL)

    async def test_a_ttl_that_would_overflow_is_refused(self, store: MetadataStore) -> None:
        async with unchanged(store):
            with pytest.raises(Invalid, match="ttl_ms"):
                await store.acquire_partition_lease("orders", 1, "agent-1", 2**63 - 1)


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    lease = await store.acquire_partition_lease("orders", 0, "agent-1", TTL)
    async with unchanged(store):
        for name in BAD_NAMES:
            await refused(store.register_agent(name, "host:1"), "agent_id", name)
            await refused(store.heartbeat(name), "agent_id", name)
            await refused(store.get_agent(name), "agent_id", name)
            await refused(store.deregister_agent(name), "agent_id", name)
            await refused(store.acquire_partition_lease(name, 0, "agent-1", TTL), "topic", name)
            await refused(store.acquire_partition_lease("orders", 0, name, TTL), "agent_id", name)
            await refused(store.get_partition_lease(name, 0), "topic", name)
            if name is not None:
                await refused(store.list_partition_leases(topic=name), "topic", name)
                await refused(store.list_partition_leases(agent_id=name), "agent_id", name)
            bad = msgspec.structs.replace(lease, topic=name)
            await refused(store.release_partition_lease(bad), "topic", name)
        for text in ("nul\0", "\ud800", 5):
            await refused(store.register_agent("agent-3", text), "address", text)  # type: ignore[arg-type]
            await refused(store.register_agent("agent-3", "h", zone=text), "zone", text)  # type: ignore[arg-type]
            await refused(store.register_agent("agent-3", "h", group=text), "group", text)  # type: ignore[arg-type]
            await refused(store.list_agents(group=text), "group", text)  # type: ignore[arg-type]
        await refused(store.register_agent("agent-3", ""), "address", "")
        for number in BAD_COUNTS:
            await refused(store.list_agents(alive_within_ms=number), "alive_within_ms", number)
            await refused(store.get_partition_lease("orders", number), "partition_id", number)
            await refused(store.acquire_partition_lease("orders", number, "agent-1", TTL), "partition_id", number)
            bad = msgspec.structs.replace(lease, epoch=number)
            await refused(store.release_partition_lease(bad), "epoch", number)
        for number in [*BAD_COUNTS, 0]:
            await refused(store.acquire_partition_lease("orders", 0, "agent-1", number), "ttl_ms", number)
