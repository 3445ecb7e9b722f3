"""`Tracing` with OpenTelemetry's SDK (docs/decisions/0022-tracing.md)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec
import structlog
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags

from astha.clock import LoopClock
from astha.events import Commit, EventBatch, Transaction
from astha.events.traceparent import TraceParent
from astha.redaction import Redactor
from astha.settings.tracing import TracingSettings
from astha.tracing.contract import NO_SPAN, Attribute, Span, SpanCounts, SpanKind
from astha.tracing.otel.export import SpanQueue
from astha.tracing.otel.recorded_span import RecordedSpan, named
from astha.tracing.sampling import CommitSampler
from astha.tracing.trace_ids import trace_id_of, unsampled
from astha.version import version

log = structlog.get_logger(__name__)

_MOST_LINKS = 32
_NOTHING = Context()
_KINDS: Mapping[SpanKind, otel.SpanKind] = {
    "internal": otel.SpanKind.INTERNAL,
    "client": otel.SpanKind.CLIENT,
    "producer": otel.SpanKind.PRODUCER,
    "consumer": otel.SpanKind.CONSUMER,
}


class DaemonOrigin(msgspec.Struct, frozen=True):
    """The daemon whose spans are recorded. `instance` is unique to its process."""

    group: str
    source: str  # its kind, as `astha status --all` shows it
    instance: str
    follows: bool


class OpenTelemetryTracing:
    """Records a span for each traced commit, each delivery of one, each failing delivery and each refresh."""

    def __init__(
        self,
        settings: TracingSettings,
        origin: DaemonOrigin,
        redact: Redactor,
        clock: LoopClock,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._origin = origin
        self._redact = redact
        self._clock = clock
        self._sampler = CommitSampler(settings.sample_ratio, settings.max_traces_per_s, clock)
        self._queue = SpanQueue(settings, exporter)
        self._ids = _GivenTraceIds()
        # Commits are sampled before a span is made; a span that is made is exported.
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=_resource(settings, origin), shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("astha", version())

    # -- for components ----------------------------------------------------------------------------------

    def span(self, name: str, kind: SpanKind = "internal", /, **attributes: Attribute) -> AbstractContextManager[Span]:
        if not otel.get_current_span().is_recording():
            return NO_SPAN
        return self._recorded(self._tracer.start_span(name, kind=_KINDS[kind], attributes=self._named(attributes)))

    def trace(
        self, name: str, commit: Commit | None = None, /, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        above = _NOTHING
        if commit is not None:
            if commit.trace is None:
                return NO_SPAN
            above = _below(commit.trace)
        return self._recorded(self._tracer.start_span(name, above, attributes=self._named(attributes)))

    def traceparent(self, commit: Commit | None = None) -> bytes | None:
        current = self.in_progress()
        if commit is None:
            return None if current is None else current.to_header()
        found = commit.trace or unsampled(commit)
        if current is not None and found.sampled and current.trace_id == found.trace_id:
            found = current
        return found.to_header()

    # -- for the daemon ----------------------------------------------------------------------------------

    def observe(self, transactions: Sequence[Transaction]) -> None:
        try:
            for transaction in self._sampler.choose(transactions):
                transaction.commit.trace = self._received(transaction)
        except Exception:  # must not stop the source
            log.exception("commits can't be traced")

    def _received(self, transaction: Transaction) -> TraceParent:
        """Records that a commit was received: from the database as `commit`, from a leader's stream as `receive`."""
        commit, now = transaction.commit, self._clock.now_ms() * 1_000_000
        remote, start = commit.trace, now
        name, kind = ("receive", otel.SpanKind.CONSUMER) if self._origin.follows else ("commit", otel.SpanKind.INTERNAL)
        if not self._origin.follows:
            start = commit.committed_at * 1_000
        if remote is None:
            self._ids.next_trace(trace_id_of(commit))
        span = self._tracer.start_span(
            name,
            _NOTHING if remote is None else _below(remote),
            kind=kind,
            start_time=start,
            attributes={
                "astha.group": self._origin.group,
                "astha.source": self._origin.source,
                "astha.position": commit.position,
                "astha.transaction": commit.transaction,
                "astha.tables": sorted(transaction.tables),
                "astha.events": len(transaction.events),
            },
        )
        span.end(max(start, now))
        return _parent_of(span)

    def delivery(self, component: str, batch: EventBatch) -> AbstractContextManager[Span]:
        """The span is in the first traced commit's trace, and linked to the others."""
        traced = [commit.trace for commit in batch.traced() if commit.trace is not None]
        tally = batch.tally()
        attributes: dict[str, Attribute] = {
            "group": self._origin.group,
            "component": component,
            "position": batch.position,
            "transactions": len(batch.transactions),
            "events": len(batch.events),
            "tables": sorted({table for table, _ in tally}),
        }
        for (_, operation), number in tally.items():
            name = f"{operation.lower()}s"
            attributes[name] = int(str(attributes.get(name, 0))) + number
        return self._recorded(
            self._tracer.start_span(
                f"deliver {component}",
                _below(traced[0]),
                links=[Link(_context(each)) for each in traced[1 : 1 + _MOST_LINKS]],
                attributes=self._named(attributes),
            )
        )

    def failed_delivery(self, component: str, commit: Commit) -> AbstractContextManager[Span]:
        self._ids.next_trace(trace_id_of(commit))
        attributes = self._named({"group": self._origin.group, "component": component, "position": commit.position})
        return self._recorded(self._tracer.start_span(f"deliver {component}", _NOTHING, attributes=attributes))

    def refresh(self, component: str, reason: str, cause: TraceParent | None) -> AbstractContextManager[Span]:
        attributes = self._named({"group": self._origin.group, "component": component, "reason": reason})
        links = [] if cause is None else [Link(_context(cause))]
        return self._recorded(
            self._tracer.start_span(f"refresh {component}", _NOTHING, attributes=attributes, links=links)
        )

    def in_progress(self) -> TraceParent | None:
        span = otel.get_current_span()
        return _parent_of(span) if span.is_recording() else None

    def counts(self) -> SpanCounts:
        return self._queue.counts()

    async def close(self) -> None:
        await self._queue.close()

    def _recorded(self, span: otel.Span) -> RecordedSpan:
        return RecordedSpan(span, self._redact)

    def _named(self, attributes: Mapping[str, Attribute]) -> dict[str, str | bool | int | float | tuple[str, ...]]:
        return named(attributes, self._redact)


class _GivenTraceIds(RandomIdGenerator):
    """Random ids, but for a trace whose id was given just before, in the same thread."""

    def __init__(self) -> None:
        self._given = threading.local()

    def next_trace(self, trace_id: int) -> None:
        self._given.trace_id = trace_id

    def generate_trace_id(self) -> int:
        given: int | None = getattr(self._given, "trace_id", None)
        self._given.trace_id = None
        return super().generate_trace_id() if given is None else given

    def is_trace_id_random(self) -> bool:
        return False


def _resource(settings: TracingSettings, origin: DaemonOrigin) -> Resource:
    attributes = {SERVICE_VERSION: version(), SERVICE_INSTANCE_ID: origin.instance, "astha.group": origin.group}
    if settings.service_name is not None:
        attributes[SERVICE_NAME] = settings.service_name
    elif not os.environ.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = "astha"
    return Resource.create(attributes)


def _context(parent: TraceParent) -> SpanContext:
    return SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED * parent.sampled)
    )


def _below(parent: TraceParent) -> Context:
    return otel.set_span_in_context(NonRecordingSpan(_context(parent)), _NOTHING)


def _parent_of(span: otel.Span) -> TraceParent:
    context = span.get_span_context()
    return TraceParent(context.trace_id, context.span_id, context.trace_flags.sampled)
