"""The daemon: the only place that knows all stages.

source -> router -> lanes -> components,   ledger -> source
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext

import msgspec
import structlog

from astha.change_log_claim import ChangeLogClaim
from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError, LeadershipLost, SourceError
from astha.events import Transaction
from astha.lanes.failures import FailureLog
from astha.lanes.inspection import shown_reason, shown_state, slowest
from astha.lanes.lane import Lane
from astha.lanes.ledger import Ledger
from astha.lanes.lifecycle import Lifecycle
from astha.lanes.state import LaneContext, LaneProgress, LaneState
from astha.leadership import Leadership
from astha.loop_watchdog import LoopWatchdog
from astha.presence import Presence
from astha.routing.router import Router
from astha.settings.groups import DaemonSettings as DaemonSettings
from astha.sources.contract import Batch, Gap, Progress, Replays, Source, Started
from astha.subscribers.context import ComponentState
from astha.subscribers.contract import Subscriber
from astha.subscribers.lane_policy import LanePolicy
from astha.tasks import cancel_and_wait, first_of, raise_if_cancelled
from astha.tracing import Tracing
from registry.contract import MetadataStore
from registry.errors import Fenced, PermissionDenied, RegistryError, SchemaMismatch, SchemaTooNew, Unavailable
from registry.position import Position

log = structlog.get_logger(__name__)

_LANES_FIRST_S = 0.05
"""For how long at most busy lanes work before the source is read again."""

_RESTART_WAIT_S = 1.0

_LEDGER_WITHIN_S = 60.0
"""A registry that has not written the ledger by then does not answer; its own statement timeout is shorter."""

_BUDGET_THRESHOLD = 0.9
"""Fraction of the retained WAL budget at which the slowest component's circuit is opened."""


class NamedSubscriber(msgspec.Struct, frozen=True):
    """A subscriber under the name that subscriptions.yaml gives it."""

    name: str
    subscriber: Subscriber
    policy: LanePolicy = LanePolicy()


class Daemon:
    def __init__(
        self,
        store: MetadataStore,
        source: Source,
        components: list[NamedSubscriber],
        leadership: Leadership,
        settings: DaemonSettings,
        clock: LoopClock,
        require_schema: Callable[[], Awaitable[None]] | None = None,
        ledger_store: MetadataStore | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """``require_schema`` is called whenever leading begins: the registry may be another one by then.
        ``ledger_store`` has connections of its own, so that the ledger never waits for the work of components.
        """
        self.source = source
        self.leadership = leadership
        self.settings = settings
        self._store = store
        self._ledger_store = ledger_store or store
        self._clock = clock
        self._require_schema = require_schema
        self.clock_guard: ClockGuard | None = None
        self.presence: Presence | None = None
        self.change_log_claim: ChangeLogClaim | None = None  # for a source that reads SQLite's change log
        self.components = components
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._received = Position(0)
        self._streaming = asyncio.Event()
        self._failures = FailureLog(clock)
        self._lifecycles = [
            Lifecycle(each.name, each.subscriber, each.policy, clock, self._failures) for each in components
        ]
        # Called with all transactions; must not wait or fail.
        self.observers: list[Callable[[Sequence[Transaction]], None]] = []
        self.tracing = tracing
        if tracing is not None:
            self.observers.append(tracing.observe)
        self._make_lanes()

    def _make_lanes(self) -> None:
        context = LaneContext(
            store=self._store,
            clock=self._clock,
            recent=lambda: self.router.recent(),
            may_deliver=self.leadership.lease_is_valid,
            changed=self._changed.set,
            failures=self._failures,
            epoch=lambda: self.leadership.lease.epoch,
            replay=self.source.replay if isinstance(self.source, Replays) else None,
            tracing=self.tracing,
        )
        self.lanes = [
            Lane(each.name, each.subscriber, each.subscriber.subscribed_tables, each.policy, context)
            for each in self.components
        ]
        self.router = Router(self.lanes)
        unit = self.source.status().unit
        self.ledger = Ledger(self._ledger_store, self._clock, self.leadership.group, unit)

    @property
    def by_name(self) -> Mapping[str, Lane]:
        return {lane.name: lane for lane in self.lanes}

    def component_states(self) -> list[ComponentState]:
        return [
            ComponentState(lane.name, str(shown_state(lane)), shown_reason(lane), lane.position) for lane in self.lanes
        ]

    @property
    def received(self) -> Position:
        """The position up to which the stream has been received."""
        return self._received

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Requests a graceful end: what is queued is delivered, within `shutdown_timeout_s`."""
        self._stopping.set()

    async def run(self) -> None:
        """Stands by, leads, stands by again if leadership is lost; until `stop` or cancelled.

        Raises only errors that an operator has to fix, ConfigError above all.
        """
        async with nullcontext() if self.presence is None else self.presence.reported():
            await self._run()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            if not await self._unless_stopped(self.leadership.acquire()):
                return
            try:
                await self._lead()
            except (LeadershipLost, Fenced) as fenced:
                log.error("leadership lost: standing by", reason=str(fenced))
            except (PermissionDenied, SchemaTooNew) as error:
                raise ConfigError(str(error)) from error
            except (Unavailable, SchemaMismatch, TimeoutError) as error:
                log.error("registry does not answer: starting over", error=repr(error))
                await self._unless_stopped(self._clock.sleep(_RESTART_WAIT_S))
            finally:
                await self.leadership.resign()
            self._make_lanes()

    async def _lead(self) -> None:
        self._streaming.clear()
        self._received = Position(0)
        async with asyncio.timeout(_LEDGER_WITHIN_S):
            if self._require_schema is not None:
                await self._require_schema()
            restored = await self.ledger.open(self._progress())
        for lane in self.lanes:
            if lane.name in restored:
                lane.restore(restored[lane.name])
        watchdog = LoopWatchdog(self.lanes, self.settings.loop_block_limit_s)
        lanes = [asyncio.create_task(lifecycle.serve(lane, self._streaming), name=f"{lane.name}: lane")
                 for lifecycle, lane in zip(self._lifecycles, self.lanes, strict=True)]  # fmt: skip
        source = asyncio.create_task(self._read_source(), name="source")
        background = [
            asyncio.create_task(self.leadership.hold(), name="lease"),
            asyncio.create_task(self._keep_ledger(), name="ledger"),
            asyncio.create_task(watchdog.run(), name="loop watchdog"),
        ]
        if self.change_log_claim is not None:
            background.append(asyncio.create_task(self.change_log_claim.hold(), name="change log claim"))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({source, stopping, *background, *lanes}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # raises what ended it
                raise RuntimeError(f"task {task.get_name()!r} ended unexpectedly")
            await self._drain()
            await cancel_and_wait(*lanes)
            await self._write_last()
        finally:
            try:
                await cancel_and_wait(*lanes)
            finally:
                try:
                    await cancel_and_wait(stopping, source, *background)
                finally:
                    await self.source.close()

    async def _read_source(self) -> None:
        if self.change_log_claim is not None:
            await self.change_log_claim.held.wait()
        async with aclosing(self.source.stream(self.router.tables)) as stream:
            async for batch in stream:
                if self._stopping.is_set():
                    break
                self._take(batch)
                if isinstance(batch, Gap):
                    await self._persist_refresh_owed()
                else:
                    await self._let_lanes_work()
            else:
                raise SourceError("the stream of changes ended unexpectedly")
            # What is not taken is sent again later. The connection stays open for the last acknowledgement.
            await asyncio.Event().wait()

    async def _let_lanes_work(self) -> None:
        """Lets lanes that have work to do run first: reading more would only fill their queues.

        Bounded: a component that computes for long must not keep events from the others.
        """
        deadline = self._clock.monotonic() + _LANES_FIRST_S
        await asyncio.sleep(0)
        while any(lane.yielding for lane in self.lanes) and self._clock.monotonic() < deadline:  # noqa: ASYNC110
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
                self.ledger.start_at(position)
                for lane in self.lanes:
                    lane.started(position)
                self._streaming.set()
            case _:
                self._received = max(self._received, batch[-1].position)
                self.router.route(batch)
                for observe in self.observers:
                    observe(batch)

    async def _keep_ledger(self) -> None:
        while True:
            self._changed.clear()
            await self._try_ledger()
            raise_if_cancelled()
            self._enforce_wal_budget()
            await first_of(self._clock.sleep(self.settings.ledger_interval_s), self._changed.wait())

    async def _write_ledger(self, *, last: bool = False) -> None:
        async with asyncio.timeout(_LEDGER_WITHIN_S):
            written = await self.ledger.write(self._progress, self._received, self.leadership.lease, last=last)
        by_name = self.by_name
        for progress in written.refresh_owed:
            by_name[progress.component].persisted_refresh_owed(progress)
        self.source.acknowledge(written.acknowledged)

    def _progress(self) -> list[LaneProgress]:
        return [lane.progress() for lane in self.lanes]

    async def _try_ledger(self, *, last: bool = False) -> bool:
        """Returns False if it could not be written now. Raises `Fenced` or `PermissionDenied` if it never can."""
        try:
            await self._write_ledger(last=last)
        except (Fenced, PermissionDenied):
            raise
        except (RegistryError, TimeoutError) as error:
            log.warning("ledger not written, will be retried", error=repr(error))
            return False
        return True

    async def _persist_refresh_owed(self) -> None:
        """After a gap: all refreshes are owed in the ledger before the source records the new server identity."""
        while not await self._try_ledger():
            await self._clock.sleep(self.settings.ledger_interval_s)

    async def _write_last(self) -> None:
        try:
            await self._try_ledger(last=True)
        except (LeadershipLost, Fenced, PermissionDenied) as error:
            log.warning("ledger not written at the end; what it lacks is delivered again", error=str(error))

    def _enforce_wal_budget(self) -> None:
        """Opens the slowest component's circuit before what the database keeps for it exceeds the budget."""
        lane = slowest(self.lanes)
        if lane is not None:
            retained = self.source.retained_for(lane.position)
            budget = self.settings.retained_wal_budget_bytes
            if retained > budget * _BUDGET_THRESHOLD:
                lane.force_open_circuit(
                    f"the database keeps {retained} bytes of changes for it; the budget is {budget}"
                )

    async def _drain(self) -> None:
        """Lets live lanes deliver what is queued."""
        deadline = self._clock.monotonic() + self.settings.shutdown_timeout_s
        while any(lane.queue and shown_state(lane) is LaneState.LIVE for lane in self.lanes):
            if self._clock.monotonic() > deadline:
                left = {lane.name: lane.queue.events for lane in self.lanes if lane.queue}
                log.warning("stopping with undelivered events; they are delivered after the next start", events=left)
                return
            await asyncio.sleep(0.01)

    async def _unless_stopped(self, work: Awaitable[None]) -> bool:
        """Returns False if `stop` was called first; the work is cancelled then."""
        task = asyncio.ensure_future(work)
        await first_of(task, self._stopping.wait())
        return not task.cancelled()
