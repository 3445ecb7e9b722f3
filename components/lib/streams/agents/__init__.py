"""Who may write a partition: leases with epochs, held for as long as the process lives.

In: partitions that somebody wants to write, or a share of all of them. Out: `Held` partitions with the next offset.
Guaranteed: of all processes only the holder of the current epoch can register segments; the next offset of a held
partition is exact.
"""

from components.lib.streams.agents.agent import Agent
from components.lib.streams.agents.lease import HeldLease
from components.lib.streams.agents.settings import AgentSettings

__all__ = ["Agent", "AgentSettings", "HeldLease"]
