"""The one task of a lane that calls its component: delivers, refreshes, holds, one after another."""

from __future__ import annotations

import asyncio

import structlog

from astha.errors import ChangesLost, ConfigError, SourceError
from astha.lanes.delivery import Delivery, DeliveryCancelled, Undeliverable
from astha.lanes.error_policy import Action, treatment
from astha.lanes.hold import Hold
from astha.lanes.lane import Lane
from astha.lanes.refresh import Refresh
from astha.lanes.state import LaneState

log = structlog.get_logger(__name__)


class LaneWorker:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.delivery = Delivery(lane)
        self._refresh = Refresh(lane)
        self._hold = Hold(lane, self.delivery)
        self._resumed = False

    async def run(self) -> None:
        """Serves the component until cancelled; see `Calls.run`. No error of the component ends it."""
        lane = self._lane
        watchdog = lane.calls.watch(lane.context.may_deliver, lane.open_circuit)
        await lane.calls.run(self._work, watchdog, self._check_health())

    async def _check_health(self) -> None:
        lane = self._lane
        while True:
            await lane.clock.sleep(lane.policy.health_interval_s)
            if lane.state is LaneState.LIVE and not await lane.health.healthy() and lane.state is LaneState.LIVE:
                lane.open_circuit(f"health check failed: {lane.health.reason}")

    async def _work(self) -> None:
        lane = self._lane
        lane.serving = True
        while not lane.calls.ended:
            try:
                await self._step()
            except (asyncio.CancelledError, GeneratorExit) as error:
                lane.calls.failure(error)
            except DeliveryCancelled:
                continue
            except Undeliverable as undeliverable:
                self._give_up(undeliverable)
            except BaseException as error:
                log.exception("lane worker failed", component=lane.name)
                lane.open_circuit(f"{error!r} ({treatment(error).hint})")

    async def _step(self) -> None:
        lane = self._lane
        if not self._resumed:
            self._resumed = True
            if lane.state.keeps_position():  # otherwise a refresh comes first
                lane.context.resume(lane.subscriber, lane.position)
        match lane.state:
            case LaneState.LIVE:
                await self._serve()
            case LaneState.BOOTSTRAPPING | LaneState.RECOVERING:
                reason = await self._refresh.run()
                if reason is not None:
                    lane.open_circuit(reason)
            case LaneState.HELD:
                await self._hold.retry()
            case LaneState.BROKEN:
                await self._wait_for_reset()
            case LaneState.PAUSED:
                await self._wait_for_work()

    async def _serve(self) -> None:
        lane = self._lane
        await self.delivery.deliver_queue()
        if lane.state is LaneState.LIVE and not lane.calls.ended:
            if lane.intake.behind:
                await self._catch_up()
            else:
                lane.intake.advance(max(lane.position, lane.intake.received))
                await self._wait_for_work()

    async def _catch_up(self) -> None:
        lane, replay = self._lane, self._lane.context.replay
        if replay is None:
            lane.force_open_circuit("its queue was full, and this source can't be read again")
            return
        try:
            refused = await self._hold.catch_up(replay)
        except ChangesLost as error:
            lane.force_open_circuit(f"what did not fit its queue is not retained any more: {error}")
        except (SourceError, ConfigError) as error:
            lane.hold(f"what did not fit its queue can't be read again: {error}")
        else:
            if refused is not None:
                lane.refuse(refused)

    async def _wait_for_work(self) -> None:
        self._lane.status.wake.clear()
        if not self._lane.queue:
            self.delivery.start_time_slice()
            await self._lane.status.wake.wait()

    async def _wait_for_reset(self) -> None:
        """Recovers after the breaker's reset timeout, which starts again if the component is still unhealthy."""
        lane = self._lane
        await lane.clock.sleep(lane.breaker.reset_in_s)
        if lane.state is not LaneState.BROKEN:
            return
        healthy = await lane.health.healthy()
        if lane.state is LaneState.BROKEN:
            if healthy:
                lane.status.enter(LaneState.RECOVERING, f"circuit was open: {lane.reason}")
            else:
                lane.breaker.open()

    def _give_up(self, undeliverable: Undeliverable) -> None:
        """Drops the event and refreshes, or holds it."""
        lane = self._lane
        if not lane.wants_delivery():
            return  # the lane has left meanwhile, for a reason of its own
        if lane.holds:
            self.delivery.keep_undelivered()
            lane.hold(str(undeliverable))
            return
        lane.counts.dropped += 1
        if lane.breaker.closed and treatment(undeliverable.error).action is not Action.BREAK:
            lane.refresh(str(undeliverable))
        else:
            lane.open_circuit(str(undeliverable))
