"""Who holds leases now."""

from __future__ import annotations

from collections.abc import Sequence

from registry.contract import MetadataStore
from registry.models import GroupLease, PartitionLease, lease_expiry


async def current_holders(
    store: MetadataStore, leases: Sequence[PartitionLease | GroupLease], now_ms: int
) -> dict[int, str]:
    """Returns the holders of a topic's leases by partition, without those whose leases have expired."""
    heartbeats = {agent.agent_id: agent.last_heartbeat for agent in await store.list_agents()}
    holders = {}
    for lease in leases:
        holder = lease.leader_agent_id if isinstance(lease, PartitionLease) else lease.member_id
        if holder is not None and lease_expiry(lease, heartbeats.get(holder)) > now_ms:
            holders[lease.partition_id] = holder
    return holders
