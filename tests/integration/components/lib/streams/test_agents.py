from __future__ import annotations

import asyncio

import pytest

from components.lib.streams.agents import AgentSettings, HeldLease, LeaseAgent
from components.lib.streams.errors import NotLeader
from registry.contract import MetadataStore
from registry.errors import Fenced, NotFound, Unavailable
from registry.forwarding import ForwardingStore
from registry.models import Agent, Partition, PartitionLease
from tests.doubles.clock import ManualClock
from tests.doubles.fault_points import Fault, FaultPoints, FaultyRegistry
from tests.samples import segment
from tests.streams import SkippingClock, releases_done


@pytest.fixture(autouse=True)
async def _topic(store: MetadataStore) -> None:
    await store.create_topic("orders", 4)


def _agent(store: MetadataStore, name: str, **settings: float) -> LeaseAgent:
    return LeaseAgent(store, SkippingClock(), AgentSettings.model_validate(settings), agent_id=name)


async def test_concurrent_acquisitions_share_one_call(store: MetadataStore) -> None:
    await store.add_segment(segment(0, partition=2))
    points = FaultPoints()
    async with _agent(FaultyRegistry(store, points), "a") as agent:
        points.names.clear()
        first = await asyncio.gather(*(agent.acquire("orders", number % 4) for number in range(12)))
        again = await agent.acquire("orders", 2)
        assert points.names == ["acquire_partition_leases", "get_partitions"]
        assert len(set(first)) == 4
        assert again is first[2]
        assert [lease.next_offset for lease in agent.leases] == [0, 0, 10, 0]
        with pytest.raises(NotFound, match="partition 7"):
            await agent.acquire("orders", 7)
    assert {lease.leader_agent_id for lease in await store.list_partition_leases()} == {None}


class CountingRegistry(ForwardingStore):
    """Records reads of leases, partitions and agents in `names`."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.names: list[str] = []

    async def list_partitions(self, topic: str) -> list[Partition]:
        self.names.append("list_partitions")
        return await self.inner.list_partitions(topic)

    async def list_partition_leases(
        self, *, topic: str | None = None, agent_id: str | None = None
    ) -> list[PartitionLease]:
        self.names.append(f"list_partition_leases of {topic or agent_id}")
        return await self.inner.list_partition_leases(topic=topic, agent_id=agent_id)

    async def get_partition_lease(self, topic: str, partition_id: int) -> PartitionLease | None:
        self.names.append("get_partition_lease")
        return await self.inner.get_partition_lease(topic, partition_id)

    async def get_agent(self, agent_id: str) -> Agent | None:
        self.names.append("get_agent")
        return await self.inner.get_agent(agent_id)


async def test_agents_at_their_quota_read_only_their_leases(store: MetadataStore) -> None:
    """Otherwise 100 agents that share 100,000 partitions read 20 million rows in every round."""
    await store.create_topic("shared", 11)
    counting, settings = CountingRegistry(store), AgentSettings(topics=["shared"])
    async with LeaseAgent(counting, NeverClock(), settings, agent_id="one") as one:
        async with LeaseAgent(store, NeverClock(), settings, agent_id="two") as two:
            await one.balance()
            await releases_done(one)
            await two.balance()
            assert len(two.leases) == 5
            counting.names.clear()
            for _ in range(3):
                await one.balance()
            assert counting.names == ["list_partition_leases of one"] * 3
            lost = one.leases[0]
            await store.release_partition_lease(lost.row)  # another host's clock was ahead
            await store.acquire_partition_leases([lost.key], "two", 1_000)
            await one.balance()
            assert lost.lost
        await one.balance()
        assert len(one.leases) == 11


async def test_the_holder_of_many_partitions_is_looked_up_once(store: MetadataStore) -> None:
    """An agent that asks for 10,000 partitions of another one must not make 20,000 calls."""
    await store.create_topic("many", 100)
    counting = CountingRegistry(store)
    async with _agent(store, "holder") as holder, _agent(counting, "late") as late:
        await asyncio.gather(*(holder.acquire("many", number) for number in range(1, 100)))
        found = await asyncio.gather(*(late.acquire("many", n) for n in range(100)), return_exceptions=True)
        assert counting.names == ["list_partition_leases of many", "get_agent"]
    assert isinstance(found[0], HeldLease)
    for number, error in enumerate(found[1:], 1):
        assert isinstance(error, NotLeader)
        assert error.holder == "holder"
        assert f"partition {number} of topic 'many' is written by agent 'holder'" in str(error)


async def test_leases_of_dead_agents_are_released_whatever_the_wall_clock_says(
    store: MetadataStore, clock: ManualClock
) -> None:
    """The holder is killed and the wall clock set back: its leases and its heartbeat are in the future."""
    dead = LeaseAgent(store, NeverClock(), AgentSettings(topics=["orders"]), agent_id="dead")
    await dead.__aenter__()
    assert len(dead.leases) == 4
    await _kill(dead)
    clock.set(clock.now_ms() - 3_600_000)
    time = NeverClock()
    async with (
        LeaseAgent(store, time, AgentSettings(topics=["orders"]), agent_id="one") as one,
        LeaseAgent(store, time, AgentSettings(group="beside"), agent_id="two") as two,
    ):
        for _ in range(14):
            time.skip(10)
            await one.renew()
            await one.balance()
            with pytest.raises(NotLeader, match="by agent 'dead'"):
                await two.acquire("orders", 0)
        assert one.leases == []
        time.skip(10)
        await one.renew()
        await one.balance()
        assert [lease.key[1] for lease in one.leases] == [0, 1, 2, 3]
        assert {lease.row.epoch for lease in one.leases} == {2}
        for lease in dead.leases:
            with pytest.raises(Fenced):
                await store.add_segments([segment(0, partition=lease.key[1])], fences=[lease.fence])
        for _ in range(20):  # a holder that renews keeps its leases
            time.skip(10)
            clock.advance(10_000)
            await one.renew()
            with pytest.raises(NotLeader, match="by agent 'one'"):
                await two.acquire("orders", 0)


async def test_a_writer_without_a_group_detects_a_dead_lease(store: MetadataStore, clock: ManualClock) -> None:
    dead = LeaseAgent(store, NeverClock(), AgentSettings(), agent_id="dead")
    await dead.__aenter__()
    lease = await dead.acquire("orders", 0)
    await _kill(dead)
    clock.set(clock.now_ms() - 3_600_000)
    time = NeverClock()
    async with LeaseAgent(store, time, AgentSettings(), agent_id="one") as one:
        with pytest.raises(NotLeader, match="is written by agent 'dead'"):
            await one.acquire("orders", 0)
        time.skip(150)
        with pytest.raises(NotLeader, match="which is dead: try again"):
            await one.acquire("orders", 0)
        assert (await one.acquire("orders", 0)).row.epoch == lease.row.epoch + 1


async def _kill(agent: LeaseAgent) -> None:
    await agent._background.stop()


class NeverClock(SkippingClock):
    """Sleeps forever; the test advances the time."""

    def monotonic(self) -> float:
        return self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class SteppedClock(SkippingClock):
    """Reports each sleep to the test, which ends it. Nothing else takes time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    def monotonic(self) -> float:
        return self._skipped

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.waits.put_nowait((round(seconds, 3), over))
        await over.wait()
        self._skipped += seconds


async def test_one_heartbeat_renews_any_number_of_leases(store: MetadataStore) -> None:
    """After a failure the next one comes in half of the interval."""
    await store.create_topic("clicks", 450)
    points = FaultPoints(at=4, fault=Fault.CALL_LOST)  # the second heartbeat
    clock, settings = SteppedClock(), AgentSettings(renew_every_s=9, lease_s=27)
    async with LeaseAgent(FaultyRegistry(store, points), clock, settings, agent_id="a") as agent:
        leases = await asyncio.gather(*(agent.acquire("clicks", number) for number in range(450)))
        waited: list[float] = []
        for _ in range(4):
            seconds, over = await clock.waits.get()
            waited.append(seconds)
            over.set()
        assert waited == [9.0, 9.0, 4.5, 9.0]
        assert points.names[3:] == ["heartbeat"] * 3
        assert agent.leases == leases


async def test_an_agent_learns_what_it_lost_while_it_was_paused(store: MetadataStore, clock: ManualClock) -> None:
    """Also if the registry fails right after the heartbeat: the next one looks again."""
    time = NeverClock()
    points = FaultPoints(at=6, fault=Fault.CALL_LOST)
    paused = LeaseAgent(FaultyRegistry(store, points), time, AgentSettings(), agent_id="paused")
    async with paused, LeaseAgent(store, NeverClock(), AgentSettings(), agent_id="other") as other:
        kept, lost = await paused.acquire("orders", 0), await paused.acquire("orders", 1)
        await paused.renew()
        assert points.names[-1] == "heartbeat"  # nothing is read as long as heartbeats are in time
        time.skip(40)
        clock.advance(40_000)
        await other.renew()
        taken = await other.acquire("orders", 1)
        lapsed = [paused.lapsed]
        with pytest.raises(Unavailable):
            await paused.renew()
        await paused.renew()
        assert [*lapsed, paused.lapsed] == [True, False]
        assert (kept.lost, lost.lost) == (False, True)
        assert paused.leases == [kept]
        with pytest.raises(NotLeader, match="'paused'"):
            await other.acquire("orders", 0)
        with pytest.raises(Fenced):
            await store.add_segments([segment(0, partition=1)], fences=[lost.fence])
        await store.add_segments([segment(0, partition=1)], fences=[taken.fence])


async def test_an_agent_that_shares_partitions_sees_those_that_moved(store: MetadataStore) -> None:
    """Whatever the reason, such as a clock that differs by more than the term."""
    settings = AgentSettings(topics=["orders"])
    async with LeaseAgent(store, NeverClock(), settings, agent_id="a") as agent:
        leases = agent.leases
        assert len(leases) == 4
        await store.register_agent("foreign", "elsewhere:1")
        await store.release_partition_lease(leases[2].row)
        await store.acquire_partition_lease("orders", 2, "foreign", 30_000)
        await agent.balance()
        assert [lease.lost for lease in leases] == [False, False, True, False]


async def test_an_agent_deregistered_as_dead_registers_again(store: MetadataStore) -> None:
    async with _agent(store, "a") as agent:
        lease = await agent.acquire("orders", 0)
        await store.deregister_agent("a")
        await agent.renew()
        assert lease.lost
        assert agent.leases == []
        assert (await agent.acquire("orders", 0)).row.epoch == 2


async def test_a_release_waits_for_writers(store: MetadataStore) -> None:
    async with _agent(store, "a") as agent, _agent(store, "b") as other:
        lease = await agent.acquire("orders", 0)
        lease.add_users()
        moving = asyncio.create_task(agent.release(lease))
        await asyncio.sleep(0)
        with pytest.raises(NotLeader, match="moving"):
            await agent.acquire("orders", 0)
        with pytest.raises(NotLeader, match="'a'"):
            await other.acquire("orders", 0)
        lease.remove_users()
        await moving
        assert (await other.acquire("orders", 0)).row.leader_agent_id == "b"
        stuck = await agent.acquire("orders", 1)
        stuck.add_users()
        agent.settings = AgentSettings(drain_timeout_s=0)
        await agent.release(stuck)
        assert stuck.lost


async def test_a_closed_agent_holds_nothing(store: MetadataStore) -> None:
    agent = _agent(store, "a")
    async with agent:
        lease = await agent.acquire("orders", 0)
    assert lease.lost
    with pytest.raises(NotLeader, match="closed"):
        await agent.acquire("orders", 0)
    assert await store.get_agent("a") is None
