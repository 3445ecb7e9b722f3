"""Checks of tracing: whether its packages are installed, and whether the collector can be reached."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from astha.errors import ConfigError
from astha.preflight.results import PreflightResult, ok, problem, warning
from astha.settings.tracing import TracingSettings
from astha.tracing.factory import log_processors

_CONNECT_S = 5.0


async def tracing_checks(settings: TracingSettings) -> list[PreflightResult]:
    """Returns nothing if tracing is off. A collector that is away is no problem: deliveries do not wait for it."""
    if not settings.enabled:
        return []
    try:
        log_processors(settings)
    except ConfigError as error:
        return [problem("tracing", str(error), "install the extra, or set tracing.enabled to false")]
    if settings.endpoint is None:
        return [ok("tracing", "the collector is that of the environment (OTEL_EXPORTER_OTLP_*), or localhost:4318")]
    parts = urlsplit(settings.endpoint)
    address = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    try:
        async with asyncio.timeout(_CONNECT_S):
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        reason = f"the collector at {address} can't be reached, so spans are dropped: {error or 'timeout'}"
        return [warning("tracing", reason, "start the collector, or correct tracing.endpoint")]
    return [ok("tracing", f"the collector at {address} accepts connections")]
