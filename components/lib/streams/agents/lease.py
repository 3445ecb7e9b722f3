"""A partition that this process may write."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from registry.inputs import Fence
from registry.models import PartitionLease

Key: TypeAlias = tuple[str, int]


class HeldLease:
    """One lease in one epoch. Once `lost` it stays so: whoever wants the partition gets another one."""

    __slots__ = ("_idle", "_users", "key", "lease", "leaving", "lost", "next_offset")

    def __init__(self, lease: PartitionLease, next_offset: int) -> None:
        self.key: Key = (lease.topic, lease.partition_id)
        self.lease = lease
        self.next_offset = next_offset  # moved by its one writer
        self.lost = False
        self.leaving = False  # to be released as soon as nobody uses it
        self._users = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def fence(self) -> Fence:
        return Fence(self.lease.topic, self.lease.partition_id, self.lease.leader_agent_id or "", self.lease.epoch)

    def use(self, count: int = 1) -> None:
        self._users += count
        self._idle.clear()

    def leave(self, count: int = 1) -> None:
        self._users -= count
        if not self._users:
            self._idle.set()

    async def idle(self) -> None:
        """Nobody uses it."""
        await self._idle.wait()

    def __repr__(self) -> str:
        return f"<{self.key[0]}/{self.key[1]} epoch {self.lease.epoch}, next {self.next_offset}>"
