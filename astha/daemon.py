"""The daemon: the only place that knows all stages.

source -> router -> lanes -> components,   ledger -> source
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec
import structlog
from pydantic import BaseModel, ConfigDict, Field

from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError, Fenced, SourceError
from astha.events import Transaction
from astha.lanes.failures import FailureLog
from astha.lanes.lane import Lane
from astha.lanes.ledger import Ledger
from astha.lanes.lifecycle import Lifecycle
from astha.lanes.state import LaneContext, LaneState
from astha.leadership import Leadership
from astha.loop_watchdog import LoopWatch
from astha.routing.router import Router
from astha.sources.contract import Batch, Gap, Progress, Replays, Source, Started
from astha.subscribers.contract import Subscriber
from astha.subscribers.lane_policy import LanePolicy
from registry.contract import MetadataStore
from registry.errors import Fenced as RegistryFenced
from registry.errors import PermissionDenied, RegistryError, SchemaMismatch, Unavailable
from registry.position import Position

log = structlog.get_logger(__name__)

_HEAD_START_S = 0.05
_START_OVER_S = 1.0

_LEDGER_WITHIN_S = 60.0
"""A registry that has not written the ledger by then has stopped answering; its own statement timeout is shorter."""

_NEAR = 0.9
"""Of the budget of retained WAL: the laggard is broken out before it is exceeded."""


class DaemonSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_interval_s: float = Field(0.5, gt=0, description="Time between writes of the ledger.")
    shutdown_timeout_s: float = Field(20.0, gt=0, description="Time to finish what waits when asked to stop.")
    retained_wal_budget_bytes: int = Field(1024**3, gt=0, description="What the server may keep for a slow component.")
    loop_block_limit_s: float = Field(1.0, gt=0, description="A component that blocks the loop longer is broken out.")
    on_bad_component: Literal["run_others", "refuse"] = Field(
        "run_others", description="Whether the daemon runs without a component whose code can't be loaded."
    )


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
        require_schema: Callable[[], Awaitable[None]] | None = None,
        books: MetadataStore | None = None,
    ) -> None:
        """``require_schema`` is called whenever leading begins: the registry may be another one by then. ``books``: a
        store with connections of its own, so that the ledger never waits for the work of components.
        """
        self.source = source
        self.leadership = leadership
        self.settings = settings
        self._store = store
        self._books = books or store
        self._clock = clock
        self._require_schema = require_schema
        self.clock_guard: ClockGuard | None = None
        self.components = components
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._received = Position(0)
        self._streaming = asyncio.Event()
        self._failures = FailureLog(clock)
        self._lifecycles = [
            Lifecycle(each.name, each.subscriber, each.policy, clock, self._failures) for each in components
        ]
        self.taps: list[Callable[[Sequence[Transaction]], None]] = []  # who watches what passes; must not wait or fail
        self._make_lanes()

    def _make_lanes(self) -> None:
        context = LaneContext(
            store=self._store,
            clock=self._clock,
            recent=lambda: self.router.recent(),
            may_deliver=self.leadership.certain,
            changed=self._changed.set,
            indebted=lambda name: self.ledger.indebted(name),
            failures=self._failures,
            replay=self.source.replay if isinstance(self.source, Replays) else None,
        )
        self.lanes = [
            Lane(
                component.name, component.subscriber, component.subscriber.subscribed_tables, component.policy, context
            )
            for component in self.components
        ]
        self.router = Router(self.lanes)
        self.ledger = Ledger(self._books, self._clock)

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
        """Stand by, lead, stand by again if leadership is lost; until `stop` or cancelled.

        Raises only what a person has to mend, ConfigError above all.
        """
        while not self._stopping.is_set():
            if not await self._unless_stopped(self.leadership.acquire()):
                return
            try:
                await self._lead()
            except (Fenced, RegistryFenced) as fenced:
                log.error("leadership lost: standing by", reason=str(fenced))
            except PermissionDenied as error:
                raise ConfigError(str(error)) from error
            except (Unavailable, SchemaMismatch, TimeoutError) as error:
                log.error("the registry does not answer: starting over", error=repr(error))
                await self._unless_stopped(self._clock.sleep(_START_OVER_S))
            finally:
                await self.leadership.resign()
            self._make_lanes()

    async def _lead(self) -> None:
        self._streaming.clear()
        self._received = Position(0)
        async with asyncio.timeout(_LEDGER_WITHIN_S):
            if self._require_schema is not None:
                await self._require_schema()
            await self.ledger.open(self.lanes)
        watch = LoopWatch(self.lanes, self.settings.loop_block_limit_s)
        lanes = [asyncio.create_task(lifecycle.serve(lane, self._streaming), name=f"{lane.name}: lane")
                 for lifecycle, lane in zip(self._lifecycles, self.lanes, strict=True)]  # fmt: skip
        pump = asyncio.create_task(self._pump(), name="source")
        keepers = [
            asyncio.create_task(self.leadership.hold(), name="lease"),
            asyncio.create_task(self._keep_ledger(), name="ledger"),
            asyncio.create_task(watch.run(), name="loop watch"),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({pump, stopping, *keepers, *lanes}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # raises what ended it
                raise RuntimeError(f"the task {task.get_name()!r} ended by itself")
            await self._drain()
            await _end(*lanes)
            await self._write_last()
        finally:
            try:
                await _end(*lanes)
            finally:
                try:
                    await _end(stopping, pump, *keepers)
                finally:
                    await self.source.close()

    async def _pump(self) -> None:
        async with aclosing(self.source.stream(self.router.tables)) as stream:
            async for batch in stream:
                if self._stopping.is_set():
                    break
                self._take(batch)
                if isinstance(batch, Gap):
                    await self._note_debts()
                else:
                    await self._let_lanes_work()
            else:
                raise SourceError("the stream of changes ended by itself")
            # What is not taken comes again. The connection stays open: the last acknowledgement goes through it.
            await asyncio.Event().wait()

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
                self._received = Position(0)
                self.ledger.start_over()
                self.router.start_over()
                for lane in self.lanes:
                    lane.start_over(reason)
            case Progress(position):
                self._received = max(self._received, position)
                self.router.passed(position)
            case Started(position):
                self._received = max(self._received, position)
                self.ledger.start_at(position, self.lanes)
                self._streaming.set()
            case _:
                self._received = max(self._received, batch[-1].position)
                self.router.route(batch)
                for tap in self.taps:
                    tap(batch)

    async def _keep_ledger(self) -> None:
        while True:
            self._changed.clear()
            await self._try_ledger()
            self._mind_the_budget()
            sleeping = asyncio.create_task(self._clock.sleep(self.settings.ledger_interval_s))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({sleeping, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                changed.cancel()

    async def _write_ledger(self, *, last: bool = False) -> None:
        async with asyncio.timeout(_LEDGER_WITHIN_S):
            position = await self.ledger.write(self.lanes, self._received, self.leadership.lease, last=last)
        self.source.acknowledge(position)

    async def _try_ledger(self, *, last: bool = False) -> bool:
        """False if it could not be written now. Fenced or PermissionDenied if it never can."""
        try:
            await self._write_ledger(last=last)
        except (RegistryFenced, PermissionDenied):
            raise
        except (RegistryError, TimeoutError) as error:
            log.warning("the ledger could not be written; trying again", error=repr(error))
            return False
        return True

    async def _note_debts(self) -> None:
        """After a gap everybody's debt is on paper before the source takes its new history for known."""
        while not await self._try_ledger():
            await self._clock.sleep(self.settings.ledger_interval_s)

    async def _write_last(self) -> None:
        try:
            await self._try_ledger(last=True)
        except (Fenced, RegistryFenced, PermissionDenied) as error:
            log.warning("the ledger was not written at the end; what it lacks comes again", error=str(error))

    def _mind_the_budget(self) -> None:
        """Before what the database keeps for one component exceeds the budget, that component is broken out."""
        laggard = self.ledger.laggard(self.lanes)
        if laggard is not None:
            retained = self.source.retained_for(laggard.position)
            budget = self.settings.retained_wal_budget_bytes
            if retained > budget * _NEAR:
                laggard.force_open_circuit(
                    f"the database keeps {retained} bytes of changes for it; the budget is {budget}"
                )

    async def _drain(self) -> None:
        """Let lanes finish what waits."""
        deadline = self._clock.monotonic() + self.settings.shutdown_timeout_s
        while any(lane.queue and lane.shown_state is LaneState.LIVE for lane in self.lanes):
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
    """Cancels them and waits; what they raise is reported elsewhere.

    A cancellation that comes meanwhile waits for them too: a task that is left behind would go on without leadership,
    and keep its connection open.
    """
    for task in tasks:
        task.cancel()
    ending = asyncio.gather(*tasks, return_exceptions=True)
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
