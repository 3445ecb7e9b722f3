"""Sends spans over OTLP/HTTP from a thread of its own: bounded memory, and nothing waits for a collector."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from astha.settings.tracing import TracingSettings
from astha.tracing.contract import SpanCounts

log = structlog.get_logger(__name__)

_BATCH_SPANS = 512


class _FirstMessage(logging.Handler):
    """Keeps the first thing that the SDK logs about a request: its exporter returns no reason, and logs every retry."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


_sdk_log = _FirstMessage()
for _name in ("opentelemetry.exporter", "opentelemetry.sdk"):
    _library_log = logging.getLogger(_name)
    _library_log.addHandler(_sdk_log)
    _library_log.propagate = False  # a failing collector is reported once, here


class ReportingExporter(SpanExporter):
    """Counts spans, and logs when the collector stops and starts taking them. Runs in the exporting thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        self.taken = 0  # from the queue
        self.exported = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        _sdk_log.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            _sdk_log.text = repr(error)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            if self._failing:
                log.info("collector takes spans again", lost=self.lost)
        else:
            self.lost += len(spans)
            if not self._failing:
                log.warning("collector takes no spans; they are dropped", reason=_sdk_log.text)
        self._failing = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class SpanQueue(SpanProcessor):
    """A `BatchSpanProcessor` that counts what it drops. If the queue is full, the newest span is dropped."""

    def __init__(self, settings: TracingSettings, exporter: SpanExporter | None = None) -> None:
        """Tests may give another exporter."""
        self._limit = settings.max_queued_spans
        self._shutdown_timeout_s = settings.shutdown_timeout_s
        self._exporter = ReportingExporter(
            exporter
            or OTLPSpanExporter(
                endpoint=settings.endpoint,
                headers=settings.header_values() or None,
                timeout=settings.export_timeout_s,
            )
        )
        self._batches = BatchSpanProcessor(
            self._exporter, max_queue_size=self._limit, max_export_batch_size=min(_BATCH_SPANS, self._limit)
        )
        self._lock = threading.Lock()
        self._queued = 0  # ever
        self._dropped = 0

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            if self._queued - self._exporter.taken >= self._limit:
                self._dropped += 1
                return
            self._queued += 1
        self._batches.on_end(span)

    def counts(self) -> SpanCounts:
        return SpanCounts(self._exporter.exported, self._dropped, self._exporter.lost)

    def shutdown(self) -> None:
        """Does not wait. `close` does."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    async def close(self) -> None:
        """Sends what is queued, within `shutdown_timeout_s`. The SDK's shutdown blocks for longer, so it runs in a
        thread that ends with the process.
        """
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._batches.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop is closed: it did not wait
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=shut_down, name="tracing-shutdown", daemon=True).start()
        try:
            async with asyncio.timeout(self._shutdown_timeout_s):
                await closed.wait()
        except TimeoutError:
            left = self._queued - self._exporter.exported - self._exporter.lost
            log.warning("collector does not respond: last spans not sent", spans=left)
