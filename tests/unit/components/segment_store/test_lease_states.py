from __future__ import annotations

from astha.subscribers import PartitionLease
from astha.testing import FakeRegistry
from components.segment_store.lease_states import LeaseStates

NOW = 10_000


def lease(partition: int, agent: str | None, expires_at: int) -> PartitionLease:
    return PartitionLease("orders", partition, agent, expires_at, expires_at - 1_000, 1)


def counted(states: LeaseStates, **heartbeats: int) -> dict[str, float]:
    states.look(heartbeats, NOW)
    return {metric.labels.get("state", metric.name): metric.value for metric in states.metrics()}


def test_leases_are_counted_by_state() -> None:
    states = LeaseStates()
    states.add([lease(0, "a", NOW + 1), lease(1, "a", NOW + 1), lease(2, "b", NOW), lease(3, None, 0)])
    assert counted(states) == {"held": 2, "expired": 1, "released": 1, "lease_holders": 1}


def test_a_heartbeat_renews_the_leases_of_its_agent() -> None:
    states = LeaseStates()
    states.add([lease(0, "a", 2_000), lease(1, "a", 5_000), lease(2, "b", 2_000)])
    assert counted(states, a=NOW - 999, b=NOW - 1_000) == {"held": 2, "expired": 1, "released": 0, "lease_holders": 1}
    assert counted(states, a=NOW - 1_000) == {"held": 0, "expired": 3, "released": 0, "lease_holders": 0}


def test_events_change_the_state() -> None:
    states, registry = LeaseStates(), FakeRegistry()
    held = lease(0, "a", NOW + 1)
    expired = lease(0, "a", NOW - 1)
    for rows, removed, expected in (
        ([held], [], {"held": 1, "expired": 0, "released": 0, "lease_holders": 1}),
        ([expired], [], {"held": 0, "expired": 1, "released": 0, "lease_holders": 0}),
        ([], [expired], {"held": 0, "expired": 0, "released": 0, "lease_holders": 0}),
    ):
        for event in registry.commit(*rows, removed=removed).events:
            states.apply(event)
        assert counted(states) == expected
