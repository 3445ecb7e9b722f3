"""What the listener counts, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from astha.listener.link import Figures


class ListenerCollector(Collector):
    """`figures` came with the last question, so they are as old as the metrics that they are part of."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.restarts = 0

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        yield GaugeMetricFamily("astha_server_connections", "Open connections.", figures.connections)
        yield GaugeMetricFamily("astha_server_watchers", "Readers of /events.", figures.watchers)
        yield CounterMetricFamily(
            "astha_server_refused_connections", "Connections refused or closed to make room.", figures.refused
        )
        yield CounterMetricFamily(
            "astha_server_missed_events", "Events that watchers missed, added up over them.", figures.missed
        )
        yield CounterMetricFamily("astha_server_restarts", "Times that the listener was started again.", self.restarts)
