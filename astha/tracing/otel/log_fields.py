"""Adds the ids of the span in progress to log lines."""

from __future__ import annotations

from opentelemetry import trace as otel
from structlog.typing import EventDict, WrappedLogger


def add_trace_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    span = otel.get_current_span()
    if span.is_recording():
        context = span.get_span_context()
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event
