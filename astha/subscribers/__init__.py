"""What a component is to the daemon.

In: events, health questions, refreshes. Out: the component's own effect, or an error.
Guaranteed to a component: order, whole transactions if it asks for them, one call at a time.
"""

from astha.subscribers.base import Component, handles
from astha.subscribers.checks import Checkable, CheckResult
from astha.subscribers.context import ComponentContext, LakeSettings, S3Settings
from astha.subscribers.contract import RegistryWriter, Subscriber
from astha.subscribers.metrics import Metric, ReportsMetrics
from astha.subscribers.problems import Problem, ReportsProblems
from astha.subscribers.work import ReportsWork, Work
from registry.areas import Area

__all__ = [
    "Component", "Subscriber", "handles",
    "Area", "RegistryWriter",
    "Checkable", "CheckResult",
    "Metric", "ReportsMetrics", "Problem", "ReportsProblems", "Work", "ReportsWork",
    "LakeSettings", "S3Settings", "ComponentContext",
]  # fmt: skip
