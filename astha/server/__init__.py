"""The daemon's side of the HTTP server: health, metrics, status, actions, and a stream of events.

In: queries of the listener (`astha.listener`), a process of its own that serves the clients. Out: replies as JSON and
in Prometheus's text format, and the watched events, encoded once.
Guaranteed: no request changes state without the token, no reply contains a secret, and the cost for the daemon is
bounded for any number of clients and requests.
"""

from astha.server.server import Server

__all__ = ["Server"]
