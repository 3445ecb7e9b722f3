"""Logs and metrics.

In: the state of lanes, source and leadership. Out: log lines on stderr, metric families for Prometheus.
Guaranteed: neither costs anything per event, and neither shows a secret.
"""

from astha.telemetry.logs import configure_logging, set_level
from astha.telemetry.metrics import DaemonCollector

__all__ = ["DaemonCollector", "configure_logging", "set_level"]
