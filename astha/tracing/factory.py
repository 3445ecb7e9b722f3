"""Opens tracing, if the settings ask for it. Only then is OpenTelemetry imported."""

from __future__ import annotations

from structlog.typing import Processor

from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.extras import install
from astha.redaction import Redactor
from astha.settings.tracing import TracingSettings
from astha.tracing.contract import Tracing


def open_tracing(
    settings: TracingSettings,
    redact: Redactor,
    clock: LoopClock,
    *,
    group: str,
    source: str,
    instance: str,
    follows: bool,
) -> Tracing | None:
    """Returns None if tracing is off. Raises ConfigError if the extra is not installed."""
    if not settings.enabled:
        return None
    try:
        from astha.tracing.otel.tracing import DaemonOrigin, OpenTelemetryTracing
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return OpenTelemetryTracing(settings, DaemonOrigin(group, source, instance, follows), redact, clock)


def log_processors(settings: TracingSettings) -> list[Processor]:
    """Returns what adds the ids of spans to log lines: nothing if tracing is off."""
    if not settings.enabled:
        return []
    try:
        from astha.tracing.otel.log_fields import add_trace_ids
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return [add_trace_ids]


def _missing(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"tracing.enabled needs a package that is not installed ({error.name}): {install(['otel'])}")
