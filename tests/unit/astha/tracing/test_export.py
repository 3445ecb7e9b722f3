"""The queue of spans: bounded, and never waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from astha.settings.tracing import TracingSettings
from astha.tracing import SpanCounts
from astha.tracing.otel.export import SpanQueue
from tests.doubles.tracing import TracingInMemory
from tests.waiting import eventually


class StubExporter(SpanExporter):
    """Takes spans, refuses them, or does not return before `released`."""

    def __init__(self) -> None:
        self.result = SpanExportResult.SUCCESS
        self.released = threading.Event()
        self.released.set()
        self.calls = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        self.released.wait(60)
        return self.result

    def shutdown(self) -> None:
        self.released.set()


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubExporter]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    exporter = StubExporter()
    yield exporter
    exporter.released.set()


@pytest.fixture
async def span() -> ReadableSpan:
    from astha.clock import SystemLoopClock

    tracing = TracingInMemory(SystemLoopClock())
    with tracing.trace("job"):
        pass
    (found,) = await tracing.spans()
    return found


def queue_of(exporter: StubExporter, limit: int, shutdown_s: float = 5.0) -> SpanQueue:
    return SpanQueue(TracingSettings(enabled=True, max_queued_spans=limit, shutdown_timeout_s=shutdown_s), exporter)


async def test_what_is_queued_is_sent_before_the_end(exporter: StubExporter, span: ReadableSpan) -> None:
    queue = queue_of(exporter, 1_000)
    for _ in range(700):
        queue.on_end(span)
    await queue.close()
    assert queue.counts() == SpanCounts(700, 0, 0)


async def test_a_collector_that_hangs_makes_spans_be_dropped_and_counted(
    exporter: StubExporter, span: ReadableSpan
) -> None:
    exporter.released.clear()
    queue = queue_of(exporter, 10, shutdown_s=0.05)
    queue.on_end(span)
    await eventually(lambda: exporter.calls == 1, "the first call")
    for _ in range(100):
        queue.on_end(span)
    assert queue.counts() == SpanCounts(0, 90, 0)
    with structlog.testing.capture_logs() as logged:
        await asyncio.wait_for(queue.close(), 30)
    assert [line["event"] for line in logged] == ["collector does not respond: last spans not sent"]
    assert logged[0]["spans"] == 11


async def test_an_outage_is_logged_once_at_its_begin_and_at_its_end(exporter: StubExporter, span: ReadableSpan) -> None:
    queue = queue_of(exporter, 10)
    with structlog.testing.capture_logs() as logged:
        exporter.result = SpanExportResult.FAILURE
        for number in range(1, 4):
            queue.on_end(span)
            await eventually(lambda number=number: queue.counts().not_accepted == number, "lost")  # type: ignore[misc]
        exporter.result = SpanExportResult.SUCCESS
        queue.on_end(span)
        await queue.close()
    assert queue.counts() == SpanCounts(1, 0, 3)
    assert [line["event"] for line in logged] == [
        "collector takes no spans; they are dropped",
        "collector takes spans again",
    ]
