"""The daemon's HTTP server: health, metrics, status, actions, and events as they pass.

In: questions of the listener (`astha.listener`), a process of its own that talks to callers. Out: answers as JSON and
Prometheus' text, and events that are watched, encoded once.
Guaranteed: nothing changes state without the token, no answer holds a secret, and what callers cost the daemon is
bounded, however many they are and whatever they send.
"""

from astha.server.server import Server

__all__ = ["Server"]
