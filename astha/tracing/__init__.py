"""Spans from a commit to its effects (docs/operations/tracing.md).

In: transactions, deliveries and refreshes. Out: OpenTelemetry spans, sent over OTLP/HTTP by a thread of its own.
Guaranteed: without tracing, nothing here is called per event and no OpenTelemetry package is imported; with it, a
collector that is slow or away delays nothing.
"""

from astha.tracing.contract import NO_SPAN, NOT_TRACED, Attribute, Span, SpanCounts, SpanKind, Tracer, Tracing

__all__ = ["NOT_TRACED", "NO_SPAN", "Attribute", "Span", "SpanCounts", "SpanKind", "Tracer", "Tracing"]
