"""What Astha says about itself: log lines and metrics.

In: the states that lanes, source and leadership hold anyway. Out: lines on stderr, families for Prometheus.
Guaranteed: nothing is done for an event on account of either, and no secret is in them.
"""

from astha.telemetry.logs import configure_logging, set_level
from astha.telemetry.metrics import DaemonCollector

__all__ = ["DaemonCollector", "configure_logging", "set_level"]
