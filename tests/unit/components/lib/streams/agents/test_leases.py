from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from components.lib.streams.agents.leases import HeldLease, plan_rebalance
from registry.models import PartitionLease


@given(st.integers(0, 40), st.integers(1, 7), st.integers(0, 1_000))
def test_agents_converge_to_equal_quotas(partitions: int, agents: int, seed: int) -> None:
    chance = random.Random(seed)
    wanted = [("t", number) for number in range(partitions)]
    names = [f"a{number}" for number in range(agents)]
    holders: dict[tuple[str, int], str | None] = {key: chance.choice([*names, "dead", None]) for key in wanted}
    for _ in range(20):
        before = dict(holders)
        for name in chance.sample(names, len(names)):
            plan = plan_rebalance(name, names, wanted, holders)
            assert not (plan.release and plan.acquire)
            for key in plan.release:
                assert holders[key] == name, "moved what is another's"
                holders[key] = None
            for key in plan.acquire:
                assert holders[key] not in names, "took what is another's"
                holders[key] = name
        if holders == before:
            break
    counts = [list(holders.values()).count(name) for name in names]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1


def test_an_unregistered_agent_counts_itself() -> None:
    plan = plan_rebalance("new", ["old"], [("t", n) for n in range(4)], {})
    assert len(plan.acquire) == 2


async def test_a_lease_is_idle_when_its_last_user_is_done() -> None:
    lease = HeldLease(PartitionLease("orders", 0, "a", 1, 1, 1), 0)
    await lease.wait_idle()
    for _ in range(2):
        lease.add_users(2)
        waiting = [asyncio.create_task(lease.wait_idle()) for _ in range(2)]
        lease.remove_users()
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        lease.remove_users()
        await asyncio.gather(*waiting)
    await lease.wait_idle()
