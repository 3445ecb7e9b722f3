"""How far behind a component is, for those who watch."""

from __future__ import annotations

from astha.clock import LoopClock
from astha.lanes.lane import Lane


def lag_seconds(lane: Lane, clock: LoopClock) -> float:
    """Age of the oldest commit that waits; for a component that is not live, at least the time since it was.

    The latter is what may be missing at most: nothing need have changed since.
    """
    waiting = 0.0
    if lane.queue:
        waiting = max(0.0, (clock.now_ms() * 1000 - lane.queue.first().commit.committed_at) / 1e6)
    if lane.not_live_since is None:
        return waiting
    return max(waiting, clock.monotonic() - lane.not_live_since)
