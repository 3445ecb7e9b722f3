"""The result of a verification as metrics in a file, for the textfile collector of Prometheus's node_exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from components.commands.verify.report import VerificationReport

_MOST = 100
"""Series of single tables; the other metrics count all tables."""


class VerificationMetrics(Collector):
    def __init__(self, report: VerificationReport, ended_s: float, took_s: float) -> None:
        self._report = report
        self._ended_s = ended_s
        self._took_s = took_s

    def collect(self) -> Iterator[Metric]:
        tables = self._report.tables
        different = [table for table in tables if not table.equal]
        elsewhere = sum(len(difference.items) for difference in self._report.elsewhere)
        single = GaugeMetricFamily(
            "astha_verify_table_differences", "Differences of a table that is not equal.", labels=["table"]
        )
        count = elsewhere
        for number, table in enumerate(different):
            own = sum(len(difference.items) for difference in table.differences)
            count += own
            if number < _MOST:
                single.add_metric([table.table], own)
        yield GaugeMetricFamily("astha_verify_tables", "Tables that were verified.", len(tables))
        yield GaugeMetricFamily("astha_verify_different_tables", "Tables that are not equal.", len(different))
        text = "Differences in all tables, and those that belong to no table."
        yield GaugeMetricFamily("astha_verify_differences", text, count)
        yield single
        yield GaugeMetricFamily(
            "astha_verify_last_run_timestamp_seconds", "When the last complete verification ended.", self._ended_s
        )
        yield GaugeMetricFamily("astha_verify_duration_seconds", "How long it took.", self._took_s)


def write_metrics(path: Path, report: VerificationReport, ended_s: float, took_s: float) -> None:
    """Replaces the file as a whole, so that a scrape never sees a part of it. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(VerificationMetrics(report, ended_s, took_s))
    write_to_textfile(str(path), registry)
