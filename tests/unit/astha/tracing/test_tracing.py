"""Spans of commits, deliveries, refreshes and of components' own work."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from opentelemetry.trace import SpanKind
from structlog.typing import EventDict

from astha.errors import Reject
from astha.events import Event
from astha.events.traceparent import TraceParent, read_traceparent
from astha.lanes.state import LaneState
from astha.redaction import Redactor
from astha.testing import Fault, ManualClock
from astha.tracing import NOT_TRACED
from astha.tracing.otel.log_fields import add_trace_ids
from astha.tracing.trace_ids import trace_id_of
from registry.models import Row
from tests.doubles.registry import group
from tests.doubles.tracing import TracingInMemory, context_of, error_of
from tests.unit.astha.lanes.harness import LaneHarness, Subject


async def test_a_commit_and_its_delivery_are_one_trace() -> None:
    tracing = TracingInMemory(ManualClock())
    async with LaneHarness(tracing=tracing, resumed=True) as harness:
        transaction = harness.commit("a", "b")
        await harness.settle()
    commit, delivery = await tracing.spans()
    assert (commit.name, delivery.name) == ("commit", "deliver subject")
    assert context_of(commit).trace_id == context_of(delivery).trace_id == trace_id_of(transaction.commit)
    assert commit.parent is None
    assert delivery.parent is not None
    assert delivery.parent.span_id == context_of(commit).span_id
    assert commit.start_time == transaction.commit.committed_at * 1_000
    assert commit.attributes is not None
    assert commit.attributes["astha.position"] == transaction.position
    assert delivery.attributes is not None
    assert delivery.attributes["astha.component"] == "subject"
    assert delivery.attributes["astha.events"] == 2
    assert delivery.attributes["astha.inserts"] == 2
    assert delivery.attributes["astha.tables"] == ("consumer_groups",)
    assert error_of(delivery) is None


async def test_a_daemon_that_receives_it_again_uses_the_same_trace() -> None:
    async with LaneHarness(resumed=True) as harness:
        transaction = harness.commit("a")
    traces = set()
    for _ in range(2):
        tracing = TracingInMemory(ManualClock())
        transaction.commit.trace = None
        tracing.observe([transaction])
        (span,) = await tracing.spans()
        traces.add(context_of(span).trace_id)
    assert traces == {trace_id_of(transaction.commit)}


async def test_commits_that_are_not_sampled_have_no_spans() -> None:
    tracing = TracingInMemory(ManualClock(), sample_ratio=0.0)
    async with LaneHarness(tracing=tracing, resumed=True) as harness:
        for number in range(50):
            harness.commit(f"g{number}")
        await harness.settle()
        assert len(harness.subject.names) == 50
    assert await tracing.spans() == []


async def test_one_call_with_many_commits_has_one_span_with_a_bounded_number_of_links() -> None:
    class Batches(Subject):
        async def on_transactions(self, transactions: list[list[Event[Row]]]) -> None:
            for events in transactions:
                for event in events:
                    await self.on_event(event)

    tracing = TracingInMemory(ManualClock(), max_traces_per_s=1_000)
    async with LaneHarness(Batches(ManualClock()), tracing=tracing, resumed=True) as harness:
        harness.offer(*(harness.registry.commit(group(f"g{number}")) for number in range(60)))
        await harness.settle()
    spans = await tracing.spans()
    commits = [context_of(span) for span in spans if span.name == "commit"]
    (delivery,) = [span for span in spans if span.name == "deliver subject"]
    assert len(commits) == 60
    assert context_of(delivery).trace_id == commits[0].trace_id
    assert [link.context.span_id for link in delivery.links] == [commit.span_id for commit in commits[1:33]]
    assert delivery.attributes is not None
    assert delivery.attributes["astha.transactions"] == 60


async def test_retries_are_events_and_an_exhausted_delivery_is_an_error() -> None:
    tracing = TracingInMemory(ManualClock())
    subject = Subject(ManualClock())
    subject.misbehave(Fault.FAIL, times=3)
    async with LaneHarness(subject, tracing=tracing, resumed=True, attempts=3, breaker_failures=3) as harness:
        harness.commit("a")
        await harness.settle()
        while harness.lane.state is LaneState.LIVE:
            await harness.pass_time(1.0)
        await harness.converge()
    spans = await tracing.spans()
    (delivery,) = [span for span in spans if span.name == "deliver subject"]
    events = [(event.name, (event.attributes or {}).get("astha.attempt")) for event in delivery.events]
    assert events == [
        ("attempt failed", 1), ("attempt failed", 2), ("attempt failed", 3), ("circuit opened", None),
    ]  # fmt: skip
    assert "failed 3 times" in str(error_of(delivery))
    refresh = next(span for span in spans if span.name == "refresh subject")
    assert context_of(refresh).trace_id != context_of(delivery).trace_id
    assert [link.context.span_id for link in refresh.links] == [context_of(delivery).span_id]


async def test_a_failure_is_recorded_although_its_commit_is_not_sampled() -> None:
    tracing = TracingInMemory(ManualClock(), sample_ratio=0.0)
    subject = Subject(ManualClock())
    async with LaneHarness(subject, tracing=tracing, resumed=True) as harness:
        harness.commit("a")
        await harness.settle()
        subject.misbehave(Fault.FAIL, times=1)
        failing = harness.commit("b")
        await harness.pass_time(5.0)
        harness.commit("c")
        await harness.converge()
    (span,) = await tracing.spans()
    assert span.name == "deliver subject"
    assert context_of(span).trace_id == trace_id_of(failing.commit)
    assert error_of(span) is None  # a later attempt succeeded
    assert [event.name for event in span.events] == ["attempt failed"]


async def test_a_refresh_that_fails_is_an_error_and_shows_no_secret() -> None:
    tracing = TracingInMemory(ManualClock(), redact=Redactor(["sesame"]))
    subject = Subject(ManualClock())
    async with LaneHarness(subject, tracing=tracing, resumed=True) as harness:
        subject.refresh_error = Reject("refused: open sesame")
        harness.lane.refresh("asked for")
        await harness.settle()
        subject.behave()
        await harness.converge()
    failed, *_, done = [span for span in await tracing.spans() if span.name == "refresh subject"]
    assert failed.attributes is not None
    assert failed.attributes["astha.reason"] == "asked for"
    assert "refused: open ***" in str(error_of(failed))
    assert error_of(done) is None


async def test_components_record_their_own_spans_below_the_delivery() -> None:
    tracing = TracingInMemory(ManualClock())

    class Working(Subject):
        async def on_event(self, event: Event[Row]) -> None:
            with tracing.span("effect", "client", target="there") as span:
                await asyncio.sleep(0)
                span.set(rows=3)
            await super().on_event(event)

    async with LaneHarness(Working(ManualClock()), tracing=tracing, resumed=True) as harness:
        harness.commit("a")
        await harness.settle()
    spans = {span.name: span for span in await tracing.spans()}
    effect = spans["effect"]
    assert effect.parent is not None
    assert effect.parent.span_id == context_of(spans["deliver subject"]).span_id
    assert effect.attributes == {"astha.target": "there", "astha.rows": 3}
    assert effect.kind is SpanKind.CLIENT


async def test_a_span_outside_of_a_traced_delivery_is_not_recorded_and_a_trace_is() -> None:
    tracing = TracingInMemory(ManualClock())
    with tracing.span("nothing"):
        pass
    with pytest.raises(OSError, match="full"), tracing.trace("job", table="t"):
        raise OSError("disk full")
    (span,) = await tracing.spans()
    assert (span.name, "disk full" in str(error_of(span))) == ("job", True)


async def test_work_in_the_background_belongs_to_the_commit_that_caused_it() -> None:
    tracing = TracingInMemory(ManualClock())
    async with LaneHarness(resumed=True) as harness:
        traced, other = harness.commit("a"), harness.commit("b")
    tracing.observe([traced])
    for transaction in (traced, other):
        with tracing.trace("snapshot", transaction.commit):
            pass
    spans = await tracing.spans()
    assert [span.name for span in spans] == ["commit", "snapshot"]
    assert context_of(spans[1]).trace_id == trace_id_of(traced.commit)


async def test_a_follower_continues_the_trace_of_its_leader() -> None:
    async with LaneHarness(resumed=True) as harness:
        transaction = harness.commit("a")
    leader, follower = TracingInMemory(ManualClock()), TracingInMemory(ManualClock(), follows=True, sample_ratio=0.0)
    leader.observe([transaction])
    header = leader.traceparent(transaction.commit)
    assert header is not None
    transaction.commit.trace = read_traceparent(header)
    follower.observe([transaction])
    (commit,), (receive,) = await leader.spans(), await follower.spans()
    assert (receive.name, receive.kind) == ("receive", SpanKind.CONSUMER)
    assert receive.parent is not None
    assert (receive.parent.trace_id, receive.parent.span_id) == (
        context_of(commit).trace_id,
        context_of(commit).span_id,
    )


async def test_what_is_sent_names_the_span_in_progress_or_says_that_nothing_is_recorded() -> None:
    tracing = TracingInMemory(ManualClock())
    async with LaneHarness(resumed=True) as harness:
        traced, other = harness.commit("a"), harness.commit("b")
    assert tracing.traceparent() is None
    tracing.observe([traced])
    commit = traced.commit.trace
    assert isinstance(commit, TraceParent)
    assert tracing.traceparent(traced.commit) == commit.to_header()
    with tracing.trace("send", traced.commit):
        within = tracing.in_progress()
        assert within is not None
        assert tracing.traceparent(traced.commit) == within.to_header() == tracing.traceparent()
        assert within.trace_id == commit.trace_id
        unrecorded = tracing.traceparent(other.commit)
    assert unrecorded == b"00-%032x-%016x-00" % (trace_id_of(other.commit), trace_id_of(other.commit) >> 64)
    await tracing.close()


async def test_log_lines_within_a_span_carry_its_ids() -> None:
    tracing = TracingInMemory(ManualClock())
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[add_trace_ids, _as_text])
    with tracing.trace("job"):
        within = tracing.in_progress()
        line = log.info("hello")
    assert within is not None
    assert f"trace_id={within.trace_id:032x} span_id={within.span_id:016x}" in line
    assert "trace_id" not in str(log.info("hello"))
    await tracing.close()


def _as_text(_logger: object, _method: str, event: EventDict) -> str:
    return " ".join(f"{name}={value}" for name, value in event.items())


def test_without_tracing_nothing_is_recorded_or_sent() -> None:
    with NOT_TRACED.span("a", rows=1) as span, NOT_TRACED.trace("b") as other:
        span.set(rows=2)
        other.event("c", number=1)
        other.fail("d")
    assert NOT_TRACED.traceparent() is None
