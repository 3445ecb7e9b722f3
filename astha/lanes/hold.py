"""`on_exhausted: hold`: nothing is dropped. A held lane retries its first event, and what did not fit its queue is read
from the source again (docs/decisions/0017-hold.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog

from astha.events import Transaction
from astha.lanes.delivery import Delivery
from astha.lanes.intake import RefusedTransaction
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.sources.contract import Progress, Replay
from registry.position import Position

log = structlog.get_logger(__name__)


class Hold:
    def __init__(self, lane: Lane, delivery: Delivery) -> None:
        self._lane = lane
        self._delivery = delivery
        self._intake = lane.intake

    async def retry(self) -> None:
        """Makes one attempt, after backoff and only if the component is healthy. Live again if it succeeds. Raises as
        `Delivery.deliver_queue`.
        """
        lane, status = self._lane, self._lane.status
        lane.held_attempts += 1
        await lane.clock.sleep(lane.backoff.wait_s(lane.held_attempts, lane.clock))
        if lane.state is not LaneState.HELD or not await lane.health.healthy() or lane.state is not LaneState.HELD:
            return
        lane.breaker.begin_trial()
        if await self._delivery.deliver_first() and status.state is LaneState.HELD:
            lane.breaker.succeeded()
            lane.failure = None
            log.info(
                "component is no longer held", component=lane.name, attempts=lane.held_attempts, reason=status.reason
            )
            status.enter(LaneState.LIVE, None)

    async def catch_up(self, replay: Callable[[frozenset[str], Position], Replay]) -> RefusedTransaction | None:
        """Reads what did not fit the queue, from the lane's position on, until the stream continues where that ends.
        Returns early if the lane is no longer live. Raises as `replay` and `Delivery.deliver_queue`.
        """
        intake, name = self._intake, self._lane.name
        log.warning("component reads again what did not fit its queue", component=name, after=intake.position)
        ahead_from = intake.received
        async with aclosing(replay(self._lane.tables, intake.position)) as batches:
            async for batch in batches:
                if isinstance(batch, Progress):
                    intake.advance(max(intake.position, batch.position))
                else:
                    refused = await self._redeliver(batch)
                    if refused is not None or not self._live():
                        return refused
                if intake.ahead is None:
                    intake.collect_ahead()
                    ahead_from = intake.received
                if intake.position >= ahead_from:
                    return self._continue_with_stream()
        return None

    def _live(self) -> bool:
        return self._lane.status.state is LaneState.LIVE and not self._lane.calls.ended

    async def _redeliver(self, transactions: Sequence[Transaction]) -> RefusedTransaction | None:
        intake = self._intake
        last = intake.position
        for transaction in transactions:
            if not intake.queue.fits(transaction):
                await self._delivery.deliver_queue()
            if not self._live():
                return None  # what was not delivered is read again later, or refreshed
            if (refused := intake.accept(transaction, last)) is not None:
                return refused
            last = max(last, transaction.position)
        await self._delivery.deliver_queue()
        if self._live() and not intake.queue:
            intake.advance(max(intake.position, last))
        return None

    def _continue_with_stream(self) -> RefusedTransaction | None:
        intake = self._intake
        refused = intake.catch_up()
        if refused is None:
            log.info("component has caught up", component=self._lane.name, position=intake.position)
            self._lane.status.enter(LaneState.LIVE, None)
        return refused
