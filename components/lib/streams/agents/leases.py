"""The leases that a process holds, and which of a group's partitions it should hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from registry.inputs import Fence
from registry.models import PartitionLease

Key: TypeAlias = tuple[str, int]


class HeldLease:
    """One lease in one epoch. A lost lease stays lost: acquire the partition again for a new one."""

    __slots__ = ("_idle", "_users", "key", "lost", "next_offset", "releasing", "row")

    def __init__(self, row: PartitionLease, next_offset: int) -> None:
        self.key: Key = (row.topic, row.partition_id)
        self.row = row
        self.next_offset = next_offset  # advanced by the agent's writer
        self.lost = False
        self.releasing = False  # no new users; released when idle
        self._users = 0
        self._idle: asyncio.Event | None = None  # made when it is waited for: an event is 800 bytes

    @property
    def fence(self) -> Fence:
        return Fence(self.row.topic, self.row.partition_id, self.row.leader_agent_id or "", self.row.epoch)

    def add_users(self, count: int = 1) -> None:
        self._users += count
        if self._idle is not None:
            self._idle.clear()

    def remove_users(self, count: int = 1) -> None:
        self._users -= count
        if self._idle is not None and not self._users:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when the lease has no users."""
        if self._users:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def __repr__(self) -> str:
        return f"<{self.key[0]}/{self.key[1]} epoch {self.row.epoch}, next {self.next_offset}>"


class Rebalance(msgspec.Struct, frozen=True):
    """What one agent has to change. At most one of the lists has elements."""

    release: list[Key]
    acquire: list[Key]


def quota(agent_id: str, alive: Collection[str], partitions: int) -> int:
    """Returns how many of the partitions `agent_id` should hold. Quotas differ by at most one."""
    agents = sorted({*alive, agent_id})
    each, rest = divmod(partitions, len(agents))
    return each + (agents.index(agent_id) < rest)


def plan_rebalance(
    agent_id: str, alive: Collection[str], wanted: Sequence[Key], holders: Mapping[Key, str | None]
) -> Rebalance:
    """Returns what `agent_id` releases or acquires to hold its quota of `wanted`.

    All agents compute the same quotas and move only their own leases, so they converge to quotas that differ by at most
    one. Leases of agents that are not alive can be tried: they may have expired.
    """
    agents = sorted({*alive, agent_id})
    most = quota(agent_id, alive, len(wanted))
    mine = [key for key in wanted if holders.get(key) == agent_id]
    if len(mine) > most:
        return Rebalance(mine[most:], [])
    free = [key for key in wanted if holders.get(key) not in agents]
    # Each agent starts elsewhere, so that two agents rarely try the same partition.
    start = agents.index(agent_id) * len(free) // len(agents)
    return Rebalance([], [*free[start:], *free[:start]][: most - len(mine)])
