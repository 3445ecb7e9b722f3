"""The daemon: the only place that knows all stages.

source -> router -> lanes -> components,   ledger -> source
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field

from astha.clock import LoopClock
from astha.errors import Fenced
from astha.events import Transaction
from astha.lanes.lane import Lane, LaneState, Surroundings
from astha.lanes.ledger import Ledger
from astha.leadership import Leadership
from astha.loopwatch import LoopWatch
from astha.routing.router import Router
from astha.sources.contract import Batch, Gap, Progress, Source, Started
from astha.subscribers.contract import Startable, Stoppable, Subscriber
from astha.subscribers.policy import LanePolicy
from registry.contract import MetadataStore
from registry.errors import Fenced as RegistryFenced
from registry.errors import RegistryError
from registry.position import Position

log = structlog.get_logger(__name__)

_HEAD_START_S = 0.05


class DaemonSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_interval_s: float = Field(0.5, gt=0, description="Time between writes of the ledger.")
    shutdown_timeout_s: float = Field(20.0, gt=0, description="Time to finish what waits when asked to stop.")
    retained_wal_budget_bytes: int = Field(1024**3, gt=0, description="What the server may keep for a slow component.")
    loop_block_limit_s: float = Field(1.0, gt=0, description="A component that blocks the loop longer is broken out.")


class Component(msgspec.Struct, frozen=True):
    """A subscriber under the name that subscriptions.yaml gives it."""

    name: str
    subscriber: Subscriber
    policy: LanePolicy = LanePolicy()


class Daemon:
    def __init__(
        self,
        store: MetadataStore,
        source: Source,
        components: list[Component],
        leadership: Leadership,
        settings: DaemonSettings,
        clock: LoopClock,
    ) -> None:
        self.source = source
        self.leadership = leadership
        self.settings = settings
        self._store = store
        self._clock = clock
        self._components = components
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._received = Position(0)
        self._streaming = asyncio.Event()
        self.taps: list[Callable[[Sequence[Transaction]], None]] = []  # who watches what passes; must not wait or fail
        self._make_lanes()

    def _make_lanes(self) -> None:
        around = Surroundings(
            store=self._store,
            clock=self._clock,
            recent=lambda: self.router.recent(),
            may_deliver=self.leadership.certain,
            changed=self._changed.set,
        )
        self.lanes = [
            Lane(component.name, component.subscriber, component.subscriber.subscribed_tables, component.policy, around)
            for component in self._components
        ]
        self.router = Router(self.lanes)
        self.ledger = Ledger(self._store, self._clock)

    @property
    def by_name(self) -> Mapping[str, Lane]:
        return {lane.name: lane for lane in self.lanes}

    @property
    def received(self) -> Position:
        """How far the stream has come."""
        return self._received

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ask for a graceful end: what waits is delivered, within the limit."""
        self._stopping.set()

    async def run(self) -> None:
        """Stand by, lead, stand by again if leadership is lost; until `stop` or cancelled."""
        while not self._stopping.is_set():
            if not await self._unless_stopped(self.leadership.acquire()):
                return
            try:
                await self._lead()
            except Fenced as fenced:
                log.error("leadership lost: standing by", reason=str(fenced))
                self._make_lanes()
            finally:
                await self.leadership.resign()

    async def _lead(self) -> None:
        self._streaming.clear()
        await self.ledger.open(self.lanes)
        watch = LoopWatch(self.lanes, self.settings.loop_block_limit_s)
        lanes = [asyncio.create_task(self._serve(component, lane), name=f"{lane.name}: lane")
                 for component, lane in zip(self._components, self.lanes, strict=True)]  # fmt: skip
        pump = asyncio.create_task(self._pump(), name="source")
        keepers = [
            asyncio.create_task(self.leadership.hold(), name="lease"),
            asyncio.create_task(self._keep_ledger(), name="ledger"),
            asyncio.create_task(watch.run(), name="loop watch"),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({pump, stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # raises what ended it
            await _end(pump)
            await self._drain()
        finally:
            stopping.cancel()
            await _end(pump)
            await _end(*lanes)
            await _end(*keepers)
            await self.source.close()
        await self._write_ledger()

    async def _pump(self) -> None:
        async for batch in self.source.stream(self.router.tables):
            self._take(batch)
            await self._let_lanes_work()

    async def _let_lanes_work(self) -> None:
        """Lanes that are busy, not waiting, get a head start: reading on would only fill their queues.

        Bounded: a component that is slow by its own computing must not keep events from the others for long.
        """
        patience = self._clock.monotonic() + _HEAD_START_S
        await asyncio.sleep(0)
        while any(lane.out_of_breath for lane in self.lanes) and self._clock.monotonic() < patience:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _take(self, batch: Batch) -> None:
        match batch:
            case Gap(reason):
                self.router.start_over()
                for lane in self.lanes:
                    lane.start_over(reason)
            case Progress(position):
                self._received = position
                self.router.passed(position)
            case Started(position):
                self.ledger.start_at(position, self.lanes)
                self._streaming.set()
            case _:
                self._received = batch[-1].position
                self.router.route(batch)
                for tap in self.taps:
                    tap(batch)

    async def _serve(self, component: Component, lane: Lane) -> None:
        """The component's own start and stop around the lane's life."""
        subscriber = component.subscriber
        try:
            await self._streaming.wait()  # a refresh before the stream has a beginning would have to be repeated
            if isinstance(subscriber, Startable):
                await self._start(component, lane, subscriber)
            await lane.run()
        finally:
            if isinstance(subscriber, Stoppable):
                try:
                    async with asyncio.timeout(component.policy.drain_timeout_s):
                        await subscriber.stop()
                except (Exception, SystemExit) as error:
                    log.warning("component did not stop cleanly", component=component.name, error=repr(error))

    async def _start(self, component: Component, lane: Lane, subscriber: Startable) -> None:
        wait = component.policy.backoff_initial_s
        while True:
            try:
                async with asyncio.timeout(component.policy.delivery_timeout_s):
                    return await subscriber.start()
            except (Exception, SystemExit) as error:
                lane.break_out(f"start failed: {error!r}")
            await self._clock.sleep(wait)
            wait = min(wait * 2, component.policy.backoff_max_s)

    async def _keep_ledger(self) -> None:
        while True:
            try:
                await self._write_ledger()
            except RegistryFenced as error:
                raise Fenced(str(error)) from error
            except RegistryError as error:
                log.warning("the ledger could not be written; trying again", error=str(error))
            self._mind_the_budget()
            self._changed.clear()
            sleeping = asyncio.create_task(self._clock.sleep(self.settings.ledger_interval_s))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({sleeping, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                changed.cancel()

    async def _write_ledger(self) -> None:
        position = await self.ledger.write(self.lanes, self._received, self.leadership.lease)
        self.source.acknowledge(position)

    def _mind_the_budget(self) -> None:
        retained = self.source.status().retained_bytes
        budget = self.settings.retained_wal_budget_bytes
        if retained is not None and retained > budget:
            laggard = self.ledger.laggard(self.lanes)
            if laggard is not None and laggard.position < self._received:
                laggard.break_out(f"the server keeps {retained} bytes of WAL for it, more than the budget of {budget}")

    async def _drain(self) -> None:
        """Let lanes finish what waits."""
        deadline = self._clock.monotonic() + self.settings.shutdown_timeout_s
        while any(lane.queue and lane.state is LaneState.LIVE for lane in self.lanes):
            if self._clock.monotonic() > deadline:
                left = {lane.name: lane.queue.events for lane in self.lanes if lane.queue}
                log.warning("stopping with events undelivered; they come again at the next start", events=left)
                return
            await asyncio.sleep(0.01)

    async def _unless_stopped(self, waiting: Coroutine[None, None, None]) -> bool:
        task = asyncio.create_task(waiting)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            await _end(task, stopping)


async def _end(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Cancel and wait; what they raise is somebody else's to report."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
