"""Write access to partitions: leases with epochs, renewed while the process lives.

In: partitions that a writer needs, or topics whose partitions a group of agents shares. Out: `HeldLease`s with the next
offset. Guaranteed: only the holder of the current epoch can register segments; the next offset of a held lease is
exact.
"""

from components.lib.streams.agents.agent import AgentSettings, LeaseAgent
from components.lib.streams.agents.leases import HeldLease

__all__ = ["AgentSettings", "HeldLease", "LeaseAgent"]
