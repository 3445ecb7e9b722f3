"""Builds the listener's options from the settings, and validates them before anything listens."""

from __future__ import annotations

import msgspec

from astha.listener.opening import http_options
from astha.listener.options import Options
from astha.settings import ServerSettings

GROUP = "server"
"""The name of the settings, for messages."""


def listener_options(settings: ServerSettings) -> Options:
    """Raises ConfigError if other machines could reach the server without a token, or if the key is not the
    certificate's.
    """
    return msgspec.structs.replace(
        http_options(settings, GROUP),
        open_paths=frozenset(settings.open_paths),
        max_watchers=settings.max_watchers,
        max_dashboards=settings.max_dashboards,
        buffer_events=settings.tail_buffer_events,
        buffer_bytes=settings.tail_buffer_bytes,
    )
