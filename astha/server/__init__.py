"""The daemon's small HTTP server: health, metrics, status, actions, and events as they pass.

In: requests, from the same machine unless a token is set. Out: JSON, Prometheus' text, a stream of JSON lines.
Guaranteed: nothing changes state without the token, no answer holds a secret, no client slows the daemon.
"""

from astha.server.app import Server

__all__ = ["Server"]
