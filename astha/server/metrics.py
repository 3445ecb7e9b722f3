"""The listener's metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from astha.listener.link import ListenerCounts


class ListenerCollector(Collector):
    """`counts` came with the last query, so they are as old as the metrics that they are part of."""

    def __init__(self) -> None:
        self.counts = ListenerCounts()
        self.restarts = 0

    def collect(self) -> Iterator[Metric]:
        counts = self.counts
        yield GaugeMetricFamily("astha_server_connections", "Open connections.", counts.connections)
        yield GaugeMetricFamily("astha_server_watchers", "Clients that stream /events.", counts.watchers)
        yield CounterMetricFamily(
            "astha_server_refused_connections", "Connections refused, or closed for a new one.", counts.refused
        )
        yield CounterMetricFamily(
            "astha_server_missed_events", "Events that watchers missed, summed over the watchers.", counts.missed
        )
        yield GaugeMetricFamily("astha_server_dashboards", "Open live streams of dashboards.", counts.dashboards)
        yield CounterMetricFamily(
            "astha_server_dropped_dashboards",
            "Live streams of dashboards closed because the client did not read.",
            counts.dropped_dashboards,
        )
        yield CounterMetricFamily("astha_server_restarts", "Restarts of the listener.", self.restarts)
