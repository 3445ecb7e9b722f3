"""Recovery: the component reads the registry as one snapshot, then receives what the snapshot does not contain.

If the circuit is open, the refresh is the trial of the half-open circuit: it closes the circuit or opens it again.

The ledger says that the refresh is owed before it begins; otherwise a crash resumes from the position before it, and
delivers events that the refresh contained.
"""

from __future__ import annotations

import asyncio

import structlog

from astha.lanes.delivery import LEADERSHIP_POLL_S
from astha.lanes.error_policy import treatment
from astha.lanes.lane import Lane
from astha.lanes.snapshot import RefreshedSnapshot, snapshot_after
from astha.lanes.spans import LaneSpans
from registry.position import Position

log = structlog.get_logger(__name__)

_SNAPSHOT_WITHIN_S = 90.0
"""A registry that has not opened a snapshot by then does not answer; its own statement timeout is shorter."""


class Refresh:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    async def run(self) -> str | None:
        """Refreshes the component until it is live, or the lane has left the states that refresh. Returns the reason
        for opening the circuit, if the component is unhealthy or its attempts are exhausted.
        """
        lane, clock = self._lane, self._lane.clock
        failures = 0
        while lane.state.refreshes():
            if not await lane.health.healthy():
                return f"not healthy before its refresh: {lane.health.reason}"
            await lane.refresh_owed_persisted.wait()
            lane.breaker.begin_trial()
            start = lane.intake.start_collecting()
            outcome = await self._attempt(start) if lane.spans is None else await self._traced(start, lane.spans)
            if lane.calls.ended:
                return None
            if isinstance(outcome, RefreshedSnapshot):
                if self._complete(start, outcome):
                    return None
                continue
            if not lane.state.refreshes():
                return None
            failures += 1
            lane.counts.failed_refreshes += 1
            lane.context.failures.note(lane.name, "on_refresh", outcome)
            hint = treatment(outcome).hint
            log.warning("refresh failed", component=lane.name, error=repr(outcome), hint=hint)
            wait_s = lane.backoff.wait_s(failures, clock)
            lane.failed("refresh", outcome, failures, wait_s)
            if lane.breaker.failed(outcome) or failures >= lane.policy.attempts:
                return f"refresh failed: {outcome!r} ({hint})"
            await clock.sleep(wait_s)
        return None

    async def _traced(self, start: Position, spans: LaneSpans) -> RefreshedSnapshot | BaseException:
        lane = self._lane
        with spans.refreshing(lane.reason) as span:
            span.set(state=str(lane.state), breaker=lane.breaker.state, position=start)
            outcome = await self._attempt(start)
            if isinstance(outcome, BaseException):
                span.fail(outcome)
            return outcome

    async def _attempt(self, start: Position) -> RefreshedSnapshot | BaseException:
        """Returns the snapshot that the component has read, or the error."""
        lane, context, clock = self._lane, self._lane.context, self._lane.clock
        limit = asyncio.timeout(_SNAPSHOT_WITHIN_S)
        try:
            taking = snapshot_after(context.store, lane.tables, context.recent(), clock)
            async with limit, taking as (snapshot, refreshed):
                limit.reschedule(None)
                while not context.may_deliver():
                    await clock.sleep(LEADERSHIP_POLL_S)
                lane.counts.refresh_calls += 1
                lane.refresh_began = clock.monotonic()
                context.resume(lane.subscriber, start)
                error = await lane.calls.call(lane.subscriber.on_refresh, snapshot, lane.policy.refresh_timeout_s)
                if error is not None:
                    raise error
                return refreshed
        except (asyncio.CancelledError, GeneratorExit) as cancelled:
            return lane.calls.failure(cancelled)
        except BaseException as error:
            return error
        finally:
            lane.refresh_began = None

    def _complete(self, start: Position, refreshed: RefreshedSnapshot) -> bool:
        """Makes the lane live. Returns False if what came meanwhile requires another refresh."""
        lane, intake = self._lane, self._lane.intake
        if any(refreshed.splits(transaction) for transaction in intake.queue):
            intake.stop_collecting("it contained only a part of a transaction of the change log")
        if not intake.collecting:
            log.warning("refresh has to be repeated", component=lane.name, reason=intake.stop_reason)
            if intake.overflowed:
                self._double_limits()
            return False
        lane.counts.refreshes += 1
        lane.breaker.succeeded()
        intake.continue_after(refreshed, start)
        lane.go_live()
        return True

    def _double_limits(self) -> None:
        """A refresh that works but is slower than the writers gets a larger queue each time, so it converges under any
        load. One that never ends does not: its queue keeps the lane's own limits.
        """
        queue = self._lane.queue
        queue.max_events *= 2
        queue.max_bytes *= 2
        log.info("queue limits doubled for the next refresh", component=self._lane.name, events=queue.max_events)
