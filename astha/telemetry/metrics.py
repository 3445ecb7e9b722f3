"""Metrics, read from the daemon's state at each scrape: they cost nothing per event.

A standby has no metrics of components, because it does not know their state. docs/reference/metrics.md lists
all metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.lanes.inspection import delivery_attempts, lag_seconds, shown_state
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.sources.contract import SourceStatus
from astha.subscribers import ReportsMetrics, Subscriber
from astha.subscribers.problems import problems_of
from astha.tracing import SpanCounts
from astha.version import version

log = structlog.get_logger(__name__)

_BUCKETS = range(9, 27)
"""Exponents of two, in microseconds: from half a millisecond to a minute."""

_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
_BREAKER_STATES = ("closed", "open", "half-open")

_COUNTERS = {
    "attempts": "Calls with events, including failed ones.",
    "failures": "Calls with events that failed.",
    "drops": "Events dropped after all attempts; a refresh follows.",
    "refreshes": "Refreshes that succeeded.",
    "failed_refreshes": "Refreshes that failed and were retried.",
    "circuit_openings": "Times that the component's circuit opened, or that it was held.",
}


class DaemonCollector(Collector):
    def __init__(self, daemon: Daemon, clock: LoopClock, source: str = "unknown") -> None:
        """`source` is the kind of the daemon's source: a standby, whose source is closed, has it too."""
        self._daemon = daemon
        self._clock = clock
        self._info = {"group": daemon.leadership.group, "source": source}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("astha_build", "Version of Astha.", {"version": version()})
        yield InfoMetricFamily("astha_daemon", "The daemon's group, and the kind of its source.", self._info)
        if (guard := self._daemon.clock_guard) is not None:
            text = "1 while the wall clock is trusted, 0 while nothing is deleted by age."
            yield GaugeMetricFamily("astha_clock_trusted", text, int(guard.steady()))
            yield CounterMetricFamily("astha_clock_jumps", "Jumps of the wall clock.", guard.jumps)
        if self._daemon.tracing is not None:
            yield from _spans(self._daemon.tracing.counts())
        leads = self._daemon.leadership.leads
        yield GaugeMetricFamily("astha_leading", "1 if this daemon leads, 0 if it stands by.", int(leads))
        if not leads:
            return
        lease = self._daemon.leadership.lease
        yield GaugeMetricFamily("astha_lease_epoch", "Increases with every change of leadership.", lease.epoch)
        status = self._daemon.source.status()
        yield from _source(status, self._daemon)
        yield from _states(self._daemon.lanes)
        yield from _deliveries(self._daemon.lanes)
        yield from _queues(self._daemon.lanes)
        yield from self._lags(status)
        problems = _gauge(
            "component_problems", "Problems that the component reports, such as tables that it can't process."
        )
        for component in self._daemon.components:
            problems.add_metric([component.name], len(problems_of(component.name, component.subscriber)))
        yield problems
        for component in self._daemon.components:
            yield from _own(component.name, component.subscriber)

    def _lags(self, status: SourceStatus) -> Iterator[Metric]:
        distance = _gauge(
            f"component_lag_{status.unit}", f"{status.unit.title()} between the stream's position and the component's."
        )
        seconds = _gauge(
            "component_lag_seconds", "Age of the oldest queued event, or time since the component was live."
        )
        for lane in self._daemon.lanes:
            if lane.position:  # a component that was never live has no position
                distance.add_metric([lane.name], max(0, self._daemon.received - lane.position))
            seconds.add_metric([lane.name], lag_seconds(lane, self._clock))
        yield distance
        yield seconds


def _spans(counts: SpanCounts) -> Iterator[Metric]:
    yield CounterMetricFamily("astha_tracing_spans_exported", "Spans that the collector has taken.", counts.exported)
    dropped = CounterMetricFamily("astha_tracing_spans_dropped", "Spans that were not sent.", labels=["reason"])
    dropped.add_metric(["queue_full"], counts.queue_full)
    dropped.add_metric(["not_accepted"], counts.not_accepted)
    yield dropped


def _own(component: str, subscriber: Subscriber) -> Iterator[Metric]:
    """Yields the component's own metrics. An error of one component does not affect the others."""
    if not isinstance(subscriber, ReportsMetrics):
        return
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    try:
        for metric in subscriber.metrics():
            family = families.get(metric.name)
            if family is None:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(f"astha_{component}_{metric.name}", metric.help, labels=list(metric.labels))
                families[metric.name] = family
            family.add_metric(list(metric.labels.values()), metric.value)
    except Exception:
        log.exception("component metrics can't be read", component=component)
        return
    yield from families.values()


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"astha_{name}", text, labels=["component", *labels])


def _source(status: SourceStatus, daemon: Daemon) -> Iterator[Metric]:
    connected = int(status.connected)
    yield GaugeMetricFamily("astha_source_connected", "1 while the stream of changes is open.", connected)
    yield GaugeMetricFamily(
        "astha_source_received_position", "Position of the last transaction received.", daemon.received
    )
    yield GaugeMetricFamily(
        "astha_source_acknowledged_position",
        "Position up to which the database may discard its log.",
        status.acknowledged,
    )
    if status.server is not None:
        yield GaugeMetricFamily(
            f"astha_source_lag_{status.unit}",
            f"{status.unit.title()} that the database has written and the stream has not received.",
            max(0, status.server - max(status.received, daemon.received)),
        )
    if status.silent_s is not None:
        yield GaugeMetricFamily(
            "astha_source_silence_seconds",
            "Time since the server sent anything, including keepalives.",
            status.silent_s,
        )
    if status.retained_bytes is not None:
        yield GaugeMetricFamily(
            "astha_source_retained_bytes", "Bytes that the database retains for this daemon.", status.retained_bytes
        )
        yield GaugeMetricFamily(
            "astha_source_retained_budget_bytes",
            "Bytes that the database may retain for a slow component.",
            daemon.settings.retained_wal_budget_bytes,
        )
    if status.wal_status is not None:
        wal = GaugeMetricFamily(
            "astha_source_wal_status", "1 for the slot's wal_status, 0 for the others.", labels=["status"]
        )
        for name in _WAL_STATUSES:
            wal.add_metric([name], int(name == status.wal_status))
        yield wal


def _states(lanes: list[Lane]) -> Iterator[Metric]:
    states = _gauge("component_state", "1 for the component's state, 0 for the others.", "state")
    breakers = _gauge("component_breaker_state", "1 for the circuit breaker's state, 0 for the others.", "state")
    for lane in lanes:
        for state in LaneState:
            states.add_metric([lane.name, state], int(state is shown_state(lane)))
        for name in _BREAKER_STATES:
            breakers.add_metric([lane.name, name], int(name == lane.breaker.state))
    yield states
    yield breakers


def _deliveries(lanes: list[Lane]) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "astha_component_events", "Events delivered.", labels=["component", "table", "operation"]
    )
    latency = HistogramMetricFamily(
        "astha_component_delivery_latency_seconds",
        "Time from commit to delivery, per transaction.",
        labels=["component"],
    )
    counters = {
        name: CounterMetricFamily(f"astha_component_{name}", text, labels=["component"])
        for name, text in _COUNTERS.items()
    }
    for lane in lanes:
        counts = lane.counts
        for (table, operation), number in counts.delivered.items():
            events.add_metric([lane.name, table, operation], number)
        latency.add_metric([lane.name], _buckets(lane), counts.latency_sum_us / 1e6)
        numbers = (
            delivery_attempts(lane), counts.failed_deliveries, counts.dropped,
            counts.refreshes, counts.failed_refreshes, counts.circuit_openings,
        )  # fmt: skip
        for counter, number in zip(counters.values(), numbers, strict=True):
            counter.add_metric([lane.name], number)
    yield events
    yield latency
    yield from counters.values()


def _buckets(lane: Lane) -> list[tuple[str, float]]:
    """Returns cumulative buckets. A latency of n bits is below 2**n microseconds."""
    counted = dict(lane.counts.latency_us)
    cumulative = [
        (str(2**bits / 1e6), float(sum(number for length, number in counted.items() if length <= bits)))
        for bits in _BUCKETS
    ]
    return [*cumulative, ("+Inf", float(sum(counted.values())))]


def _queues(lanes: list[Lane]) -> Iterator[Metric]:
    events = _gauge("component_queue_events", "Queued events.")
    size = _gauge("component_queue_bytes", "Bytes of queued events, as received.")
    limit_events = _gauge("component_queue_limit_events", "Limit of queued events.")
    limit_size = _gauge("component_queue_limit_bytes", "Limit of queued bytes.")
    for lane in lanes:
        events.add_metric([lane.name], lane.queue.events)
        size.add_metric([lane.name], lane.queue.size_bytes)
        limit_events.add_metric([lane.name], lane.queue.max_events)
        limit_size.add_metric([lane.name], lane.queue.max_bytes)
    yield from (events, size, limit_events, limit_size)
