"""Which partitions an agent should hold, of those that a group shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from components.lib.streams.agents.lease import Key


class Rebalance(msgspec.Struct, frozen=True):
    surplus: list[Key]  # to be given away
    free: list[Key]  # to be taken


def plan_rebalance(
    agent_id: str, alive: Collection[str], wanted: Sequence[Key], holders: Mapping[Key, str | None]
) -> Rebalance:
    """Everybody computes the same numbers and moves only what is its own, so that all come to rest with shares that
    differ by one at most. What somebody holds who is not alive can be tried: its lease may have run out.
    """
    agents = sorted({*alive, agent_id})
    each, rest = divmod(len(wanted), len(agents))
    quota = each + (agents.index(agent_id) < rest)
    mine = [key for key in wanted if holders.get(key) == agent_id]
    if len(mine) > quota:
        return Rebalance(mine[quota:], [])
    free = [key for key in wanted if holders.get(key) not in agents]
    # Where to begin differs, so that two agents rarely want the same.
    start = agents.index(agent_id) * len(free) // len(agents)
    return Rebalance([], [*free[start:], *free[:start]][: quota - len(mine)])
