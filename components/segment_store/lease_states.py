"""The leases of partitions, as the change stream brings them: for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from astha.subscribers import Event, Metric, Operation, PartitionLease, Row
from registry.models import lease_expiry


class LeaseStates:
    """A scrape counts all leases, in about 20 ms for 100,000. The daemon's clock decides which have expired, as of the
    last look at the heartbeats: until the first one, none has.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], PartitionLease] = {}
        self._heartbeats: Mapping[str, int] = {}
        self._looked_at_ms = 0

    def clear(self) -> None:
        self._leases.clear()

    def add(self, leases: Iterable[PartitionLease]) -> None:
        for lease in leases:
            self._leases[lease.topic, lease.partition_id] = lease

    def apply(self, event: Event[Row]) -> None:
        lease = event.data
        if not isinstance(lease, PartitionLease):
            return
        if event.operation is Operation.DELETE:
            self._leases.pop((lease.topic, lease.partition_id), None)
        else:
            self.add((lease,))

    def look(self, heartbeats: Mapping[str, int], now_ms: int) -> None:
        """Takes the last heartbeats of all agents, read just now."""
        self._heartbeats, self._looked_at_ms = heartbeats, now_ms

    def metrics(self) -> Iterator[Metric]:
        held = expired = released = 0
        holders = set()
        for lease in self._leases.values():
            agent = lease.leader_agent_id
            if agent is None:
                released += 1
            elif lease_expiry(lease, self._heartbeats.get(agent)) > self._looked_at_ms:
                held += 1
                holders.add(agent)
            else:
                expired += 1
        for state, number in (("held", held), ("expired", expired), ("released", released)):
            help_text = "Leases of partitions. The agent of an expired one sends no heartbeats, and none took it over."
            yield Metric("leases", help_text, number, {"state": state})
        yield Metric("lease_holders", "Agents that hold leases.", len(holders))
