"""What components, lanes and the daemon use of tracing. `NOT_TRACED` stands for it while it is off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

import msgspec

from astha.events import Commit, EventBatch, Transaction
from astha.events.traceparent import TraceParent

Attribute: TypeAlias = str | bool | int | float | Sequence[str]
SpanKind: TypeAlias = Literal["internal", "client", "producer", "consumer"]


class Span(Protocol):
    """One operation. No method waits or raises."""

    def set(self, **attributes: Attribute) -> None:
        """Sets attributes, which are named `astha.NAME`."""
        ...

    def event(self, name: str, /, **attributes: Attribute) -> None:
        """Adds something that happens now."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Marks the span as failed. An error that leaves the `with` block does so by itself."""
        ...


class Tracer(Protocol):
    """What a component uses, through its context."""

    def span(self, name: str, kind: SpanKind = "internal", /, **attributes: Attribute) -> AbstractContextManager[Span]:
        """Returns a span below the one in progress. It does nothing if none is recorded."""
        ...

    def trace(
        self, name: str, commit: Commit | None = None, /, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        """Returns the span of work that no delivery waits for. It is part of the trace of the commit that caused it, if
        that is traced; without a commit it is a trace of its own, and always recorded.
        """
        ...

    def traceparent(self, commit: Commit | None = None) -> bytes | None:
        """Returns the W3C trace context to send with what a commit, or without one the span in progress, has caused.
        None if there is none, or tracing is off.
        """
        ...


class SpanCounts(msgspec.Struct, frozen=True):
    """Since the start."""

    exported: int
    queue_full: int  # dropped
    not_accepted: int  # dropped, because the collector did not take them


class Tracing(Tracer, Protocol):
    """What the daemon uses."""

    def observe(self, transactions: Sequence[Transaction]) -> None:
        """Decides which commits are traced: sets `Commit.trace`. Call it before they are delivered."""
        ...

    def delivery(self, component: str, batch: EventBatch) -> AbstractContextManager[Span]:
        """Returns the span of a call with a batch that has traced commits."""
        ...

    def failed_delivery(self, component: str, commit: Commit) -> AbstractContextManager[Span]:
        """Returns the span of retries for a commit that is not traced: failures are always recorded."""
        ...

    def refresh(self, component: str, reason: str, cause: TraceParent | None) -> AbstractContextManager[Span]: ...

    def in_progress(self) -> TraceParent | None:
        """Returns the span in progress."""
        ...

    def counts(self) -> SpanCounts: ...

    async def close(self) -> None:
        """Sends what is queued, within the time limit."""
        ...


class _NoSpan:
    """A span that is not recorded."""

    def set(self, **attributes: Attribute) -> None:
        pass

    def event(self, name: str, /, **attributes: Attribute) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


NO_SPAN = _NoSpan()


class _NotTraced:
    def span(self, name: str, kind: SpanKind = "internal", /, **attributes: Attribute) -> AbstractContextManager[Span]:
        return NO_SPAN

    def trace(
        self, name: str, commit: Commit | None = None, /, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        return NO_SPAN

    def traceparent(self, commit: Commit | None = None) -> bytes | None:
        return None


NOT_TRACED: Tracer = _NotTraced()
