"""Tracing whose spans stay in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from astha.clock import LoopClock
from astha.events.traceparent import TraceParent
from astha.redaction import Redactor
from astha.settings.tracing import TracingSettings
from astha.tracing.otel.tracing import DaemonOrigin, OpenTelemetryTracing


class TracingInMemory(OpenTelemetryTracing):
    def __init__(
        self, clock: LoopClock, *, follows: bool = False, redact: Redactor | None = None, **settings: Any
    ) -> None:
        self._memory = InMemorySpanExporter()
        super().__init__(
            TracingSettings(enabled=True, **settings),
            DaemonOrigin("astha", "sqlite", "here", follows),
            redact or Redactor(),
            clock,
            self._memory,
        )

    async def spans(self) -> list[ReadableSpan]:
        """Ends tracing, and returns everything that was recorded."""
        await self.close()
        return list(self._memory.get_finished_spans())


def context_of(span: ReadableSpan) -> TraceParent:
    found = span.get_span_context()
    assert found is not None
    return TraceParent(found.trace_id, found.span_id, found.trace_flags.sampled)


def error_of(span: ReadableSpan) -> str | None:
    return None if span.status.is_ok or span.status.is_unset else span.status.description
