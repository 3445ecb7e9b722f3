"""Doubles for people who write components, and for Astha's own tests."""

from astha.testing.clock import ManualClock
from astha.testing.faulty import Fault, FaultySubscriber
from astha.testing.recording import RecordingSubscriber

__all__ = ["Fault", "FaultySubscriber", "ManualClock", "RecordingSubscriber"]
