"""What a component is to the daemon.

In: events, health questions, refreshes. Out: the component's own effect, or an error.
Guaranteed to a component: order, whole transactions if it asks for them, one call at a time.
"""

from astha.subscribers.base import Component, handles
from astha.subscribers.checks import Checkable, Checked
from astha.subscribers.context import LakeSettings, S3Settings, Surroundings
from astha.subscribers.contract import RegistryWriter, Subscriber
from astha.subscribers.metrics import Measure, Measured
from astha.subscribers.problems import Problem, Troubled
from astha.subscribers.work import Work, Working
from registry.privileges import Area

__all__ = [
    "Component", "Subscriber", "handles",
    "Area", "RegistryWriter",
    "Checkable", "Checked",
    "Measure", "Measured", "Problem", "Troubled", "Work", "Working",
    "LakeSettings", "S3Settings", "Surroundings",
]  # fmt: skip
