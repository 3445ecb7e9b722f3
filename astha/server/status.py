"""The state of a daemon, for `/status` and `astha status`."""

from __future__ import annotations

import msgspec

from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.lanes.inspection import delivery_attempts, lag_seconds, shown_reason, shown_state
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.server.health import readiness, role
from astha.subscribers.problems import Problem, problems_of
from astha.version import version


class LeadershipReport(msgspec.Struct, frozen=True):
    role: str
    holder: str  # this daemon
    leader: str | None  # if known
    epoch: int | None
    certain: bool


class SourceReport(msgspec.Struct, frozen=True):
    kind: str  # postgresql, sqlite, or for a follower kafka or mqtt
    connected: bool
    detail: str | None
    received: int
    acknowledged: int
    server: int | None
    lag: int | None  # between server and received
    unit: str
    silent_s: float | None
    retained_bytes: int | None
    wal_status: str | None


class QueueReport(msgspec.Struct, frozen=True):
    events: int
    bytes: int
    max_events: int
    max_bytes: int


class CountsReport(msgspec.Struct, frozen=True):
    delivered: dict[str, dict[str, int]]  # table -> operation -> events
    attempts: int
    failures: int
    dropped: int
    refreshes: int
    failed_refreshes: int
    circuit_openings: int


class BreakerReport(msgspec.Struct, frozen=True):
    state: str
    failures: int
    retry_in_s: float | None = None  # of an open one


class FailureReport(msgspec.Struct, frozen=True):
    call: str  # delivery or refresh
    error: str
    hint: str
    attempt: int
    attempts: int
    at: int
    next_try_s: float | None  # None: the circuit, or the operator, decides


class ComponentReport(msgspec.Struct, frozen=True):
    name: str
    tables: list[str]
    state: str
    reason: str | None
    position: int | None
    lag: int | None
    lag_s: float | None
    queue: QueueReport
    counts: CountsReport
    breaker: BreakerReport
    failure: FailureReport | None = None  # the last one, if no call has succeeded since
    problems: list[Problem] = []  # of single tables; the component itself works


class StatusReport(msgspec.Struct, frozen=True):
    version: str
    registry: str
    ready: bool
    reasons: list[str]
    leadership: LeadershipReport
    clock: str | None  # why nothing is deleted by age at the moment
    source: SourceReport
    components: list[ComponentReport]


class DaemonIdentity(msgspec.Struct, frozen=True):
    """Facts about the daemon's process that no stage has."""

    holder: str
    registry: str  # the URL, without its password
    stall_after_s: float
    source: str = "unknown"  # its kind


def report(daemon: Daemon, clock: LoopClock, identity: DaemonIdentity, leader: str | None) -> StatusReport:
    ready = readiness(daemon, identity.stall_after_s)
    leads = daemon.leadership.leads
    return StatusReport(
        version=version(),
        registry=identity.registry,
        ready=ready.ready,
        reasons=ready.reasons,
        leadership=LeadershipReport(
            role=role(daemon),
            holder=identity.holder,
            leader=identity.holder if leads else leader,
            epoch=daemon.leadership.lease.epoch if leads else None,
            certain=daemon.leadership.lease_is_valid(),
        ),
        clock=None if daemon.clock_guard is None else daemon.clock_guard.reason,
        source=_source(daemon, identity.source),
        components=[component_report(daemon, lane, clock) for lane in daemon.lanes],
    )


def component_report(daemon: Daemon, lane: Lane, clock: LoopClock) -> ComponentReport:
    """On a standby, a component has neither state nor lag."""
    leads = daemon.leadership.leads
    known = leads and bool(lane.position)
    counts = lane.counts
    delivered: dict[str, dict[str, int]] = {}
    for (table, operation), number in sorted(counts.delivered.items()):
        delivered.setdefault(table, {})[operation] = number
    return ComponentReport(
        name=lane.name,
        tables=sorted(lane.tables),
        state=str(shown_state(lane)) if leads else role(daemon),
        reason=shown_reason(lane) if leads else None,
        position=lane.position if known else None,
        lag=max(0, daemon.received - lane.position) if known else None,
        lag_s=round(lag_seconds(lane, clock), 3) if leads else None,
        queue=QueueReport(lane.queue.events, lane.queue.size_bytes, lane.queue.max_events, lane.queue.max_bytes),
        counts=CountsReport(
            delivered=delivered,
            attempts=delivery_attempts(lane),
            failures=counts.failed_deliveries,
            dropped=counts.dropped,
            refreshes=counts.refreshes,
            failed_refreshes=counts.failed_refreshes,
            circuit_openings=counts.circuit_openings,
        ),
        breaker=_breaker(lane),
        failure=_failure(lane) if leads else None,
        problems=_problems(daemon, lane.name) if leads else [],
    )


def _breaker(lane: Lane) -> BreakerReport:
    waits = lane.state is LaneState.BROKEN and lane.breaker.state == "open"
    return BreakerReport(
        lane.breaker.state, lane.breaker.failures, round(lane.breaker.reset_in_s, 1) if waits else None
    )


def _failure(lane: Lane) -> FailureReport | None:
    failure = lane.failure
    if failure is None:
        return None
    wait_s = failure.next_at - lane.clock.monotonic()
    tried_again = wait_s > 0 and lane.state is not LaneState.BROKEN and lane.state is not LaneState.PAUSED
    return FailureReport(
        failure.call, failure.error, failure.hint, failure.attempt, failure.attempts, failure.at_ms,
        round(wait_s, 1) if tried_again else None,
    )  # fmt: skip


def _problems(daemon: Daemon, name: str) -> list[Problem]:
    found = (component.subscriber for component in daemon.components if component.name == name)
    return [problem for subscriber in found for problem in problems_of(name, subscriber)]


def _source(daemon: Daemon, kind: str) -> SourceReport:
    status = daemon.source.status()
    received = max(status.received, daemon.received)
    return SourceReport(
        kind=kind,
        connected=status.connected,
        detail=status.detail,
        received=received,
        acknowledged=status.acknowledged,
        server=status.server,
        lag=None if status.server is None else max(0, status.server - received),
        unit=status.unit,
        silent_s=None if status.silent_s is None else round(status.silent_s, 3),
        retained_bytes=status.retained_bytes,
        wal_status=status.wal_status,
    )
