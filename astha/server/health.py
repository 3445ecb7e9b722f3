"""Liveness and readiness.

*Alive* means that the event loop runs; a standby is alive. *Ready* means that changes reach every component: this
daemon leads, the source is connected and not silent, all components are live, and none is stuck in a call or in
background work. A component is not live during its `start` or its first refresh. A standby is not ready, so that a
load balancer finds the leader.
"""

from __future__ import annotations

import msgspec

from astha.daemon import Daemon
from astha.lanes.inspection import failure_text, shown_reason, shown_state, stuck_seconds, stuck_work
from astha.lanes.state import LaneState
from astha.listener.link import STANDING_BY


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    role: str
    reasons: list[str]  # all reasons why it is not ready


def role(daemon: Daemon) -> str:
    if daemon.stopping:
        return "stopping"
    if daemon.leadership.leads:
        return "leading"
    return STANDING_BY if daemon.leadership.trouble is None else "waiting for the registry"


def readiness(daemon: Daemon, stall_after_s: float) -> Readiness:
    reasons = [] if not daemon.stopping else ["stopping"]
    if not daemon.leadership.leads:
        trouble = daemon.leadership.trouble
        reasons.append(f"can't acquire leadership: {trouble}" if trouble else "standing by: this daemon does not lead")
    else:
        if not daemon.leadership.lease_is_valid():
            reasons.append("leadership is uncertain: the lease was not renewed in time")
        reasons += _source_reasons(daemon, stall_after_s)
        reasons += [
            f"component {lane.name} is {shown_state(lane)}" + (f": {shown_reason(lane)}" if shown_reason(lane) else "")
            for lane in daemon.lanes
            if shown_state(lane) is not LaneState.LIVE
        ]
        reasons += [
            f"component {lane.name} makes no progress: the same delivery has been tried for {stuck_seconds(lane):.0f} s"
            + failure_text(lane)
            for lane in daemon.lanes
            if stuck_seconds(lane) > stall_after_s
        ]
        reasons += [
            f"component {lane.name} makes no progress: {work.name} has been idle for {work.idle_s:.0f} s, "
            f"its limit is {work.limit_s:g} s"
            for lane in daemon.lanes
            for work in stuck_work(lane)
        ]
    return Readiness(not reasons, role(daemon), reasons)


def _source_reasons(daemon: Daemon, stall_after_s: float) -> list[str]:
    status = daemon.source.status()
    if not status.connected:
        return [f"source is not connected: {status.detail or 'connecting'}"]
    if status.silent_s is not None and status.silent_s > stall_after_s:
        silent = f"connected, but it has sent nothing for {status.silent_s:.0f} s"
        return [f"source is stalled: {status.detail or silent}"]
    return []
