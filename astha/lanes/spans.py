"""The spans of one lane: its deliveries with their retries, and its refreshes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from astha.events import Commit, EventBatch
from astha.events.traceparent import TraceParent
from astha.tracing import NO_SPAN, Span, Tracing


class LaneSpans:
    """Used by the lane's worker, one span at a time. Exists only if tracing is on."""

    def __init__(self, component: str, tracing: Tracing) -> None:
        self._component = component
        self._tracing = tracing
        self._current: Span = NO_SPAN
        self._failed_attempts = 0
        self._failed: TraceParent | None = None  # the last delivery that failed: it may be the cause of a refresh

    @contextmanager
    def delivering(self, batch: EventBatch) -> Iterator[Span]:
        """For a batch with traced commits."""
        with self._tracing.delivery(self._component, batch) as self._current:
            try:
                yield self._current
            finally:
                self._end()

    @contextmanager
    def retrying(self, commit: Commit) -> Iterator[None]:
        """Failures are recorded also if the commit is not traced. Backoff limits how many there are."""
        if self._current is not NO_SPAN:
            self._failed = self._tracing.in_progress()
            yield
            return
        with self._tracing.failed_delivery(self._component, commit) as self._current:
            self._failed = self._tracing.in_progress()
            try:
                yield
            finally:
                self._end()

    def note_failure(self, error: BaseException, *, circuit_opened: bool) -> None:
        self._failed_attempts += 1
        self._current.event("attempt failed", attempt=self._failed_attempts, error=repr(error))
        self._current.set(failed_attempts=self._failed_attempts)
        if circuit_opened:
            self._current.event("circuit opened")

    def _end(self) -> None:
        self._current, self._failed_attempts = NO_SPAN, 0

    @contextmanager
    def refreshing(self, reason: str | None) -> Iterator[Span]:
        """Its own trace, linked to the delivery that failed before it."""
        cause, self._failed = self._failed, None
        with self._tracing.refresh(self._component, reason or "", cause) as span:
            yield span
