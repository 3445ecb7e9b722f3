"""Test doubles for authors of components, and for Astha's own tests.

In: rows that a test commits to a `FakeRegistry`. Out: transactions and snapshots, as a daemon would deliver them.
Guaranteed: no database, no sleeping; time moves only when a test moves a `ManualClock`.
"""

from astha.testing.async_tests import async_test
from astha.testing.clock import ManualClock
from astha.testing.faulty import Fault, FaultInjector, FaultySubscriber
from astha.testing.recording import RecordingSubscriber
from astha.testing.registry import FakeRegistry, deliver, make_context, make_row

__all__ = [
    # what a component is given
    "FakeRegistry", "deliver", "make_row", "make_context", "ManualClock", "async_test",
    # failure drills
    "Fault", "FaultInjector",
    # stand-ins for a component
    "RecordingSubscriber", "FaultySubscriber",
]  # fmt: skip
