from __future__ import annotations

from astha.subscribers import PartitionLease
from astha.testing import FakeRegistry
from components.segment_store.lease_states import LeaseStates

NOW = 10_000


def lease(partition: int, agent: str | None, expires_at: int) -> PartitionLease:
    return PartitionLease("orders", partition, agent, expires_at, 0, 1)


def counted(states: LeaseStates) -> dict[str, float]:
    return {metric.labels.get("state", metric.name): metric.value for metric in states.metrics(NOW)}


def test_leases_are_counted_by_state() -> None:
    states = LeaseStates()
    states.add([lease(0, "a", NOW + 1), lease(1, "a", NOW + 1), lease(2, "b", NOW), lease(3, None, 0)])
    assert counted(states) == {"held": 2, "expired": 1, "released": 1, "lease_holders": 1}


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
