"""What status, metrics and health checks derive from a lane."""

from __future__ import annotations

from collections.abc import Sequence

from astha.clock import LoopClock
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.subscribers.work import ReportsWork, Work


def lag_seconds(lane: Lane, clock: LoopClock) -> float:
    """Returns the age of the oldest commit in the queue; of a component that is not live, at least the time since it
    was: changes since then may be missing.
    """
    age_s = lane.oldest_queued_s
    since = lane.status.not_live_since
    return age_s if since is None else max(age_s, clock.monotonic() - since)


def shown_state(lane: Lane) -> LaneState:
    """A component that continues from its position is not live before its `start` has ended."""
    return LaneState.BOOTSTRAPPING if lane.state is LaneState.LIVE and not lane.serving else lane.state


def shown_reason(lane: Lane) -> str | None:
    """Includes the failed health check and the call in flight, if the component is not live."""
    call, began = ("on_refresh", lane.refresh_began) if lane.serving else ("start", lane.start_began)
    if shown_state(lane) is LaneState.LIVE:
        return lane.reason
    details = []
    unhealthy = lane.health.reason if lane.state in (LaneState.BROKEN, LaneState.HELD) else None
    if unhealthy is not None and unhealthy not in (lane.reason or ""):
        details.append(f"not healthy: {unhealthy}")
    if began is not None:
        details.append(f"{call} has been running for {lane.clock.monotonic() - began:.0f} s")
    if not details:
        return lane.reason
    return ", ".join(details) if lane.reason is None else f"{lane.reason} ({', '.join(details)})"


def stuck_seconds(lane: Lane) -> float:
    """Returns how long the same delivery has been tried; 0 if the queue is empty or the component is not live."""
    live = lane.queue and lane.state is LaneState.LIVE
    return lane.clock.monotonic() - lane.intake.progress_at if live else 0.0


def failure_text(lane: Lane) -> str:
    """Returns why the delivery that is tried again has failed, as the end of a sentence; empty if it has not failed."""
    failure = lane.failure
    if failure is None:
        return ""
    return f"; attempt {failure.attempt} of {failure.attempts} failed: {failure.error} ({failure.hint})"


def stuck_work(lane: Lane) -> list[Work]:
    """Returns the component's background work that makes no progress."""
    if not lane.serving or not isinstance(lane.subscriber, ReportsWork):
        return []
    try:
        return [work for work in lane.subscriber.work() if work.stuck]
    except Exception as error:
        lane.context.failures.note(lane.name, "work", error)
        return []


def slowest(lanes: Sequence[Lane]) -> Lane | None:
    """Returns the lane for which the source keeps most, if it keeps anything."""
    keeping = [lane for lane in lanes if lane.state.keeps_position()]
    return min(keeping, key=lambda lane: lane.position, default=None)


def delivery_attempts(lane: Lane) -> int:
    """Returns the calls made to deliver events, retries included."""
    return lane.calls.made - lane.counts.refresh_calls


def code_package(lane: Lane) -> str:
    """Returns the package that contains the component's code."""
    module = type(lane.subscriber).__module__
    parent = module.rpartition(".")[0]
    return parent if "." in parent else module
