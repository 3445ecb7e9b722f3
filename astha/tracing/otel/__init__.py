"""Tracing with OpenTelemetry. Imported only if tracing is on: it needs the extra `otel`."""
