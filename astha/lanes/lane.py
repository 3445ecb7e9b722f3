"""A lane: what waits for one component, the state of that component, and the worker that serves it.

    bootstrapping -> live -> broken -> recovering -> live        paused: broken until somebody resumes it
                     live -> held -> live                        with `on_exhausted: hold`, instead of broken

Everything outside the worker is synchronous and never waits: `offer` by the router, `open_circuit` by whoever finds that
the component can't go on. The worker is one task that does one thing after another, so a component is never called
twice at once. If it ignores cancellation, its lane is broken until the call returns; nobody else waits for it.

A lane that holds gives up nothing: what does not fit its queue it reads again from the database (decision 0017).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog

from astha.errors import ConfigError, SourceError
from astha.events import Commit, EventBatch, Transaction
from astha.lanes.breaker import Breaker
from astha.lanes.calls import Calls
from astha.lanes.delivery import Delivery, DeliveryCancelled, Undeliverable, backoff
from astha.lanes.error_policy import Action, treatment
from astha.lanes.health import HealthCheck
from astha.lanes.queue import LaneQueue
from astha.lanes.refresh import RefreshedSnapshot, snapshot_after
from astha.lanes.state import LaneContext, LaneCounts, LaneState
from astha.sources.contract import Progress, Replay
from astha.subscribers.contract import Subscriber, is_durable
from astha.subscribers.lane_policy import LanePolicy
from astha.subscribers.work import ReportsWork, Work
from registry.position import Position

log = structlog.get_logger(__name__)

_DOUBT_S = 0.05
"""Between two looks whether leadership is certain again."""

_SNAPSHOT_WITHIN_S = 90.0
"""A registry that has not begun a snapshot by then has stopped answering; its own statement timeout is shorter."""


_QUICK_S = 0.002
_LONGEST_RUN = 256
"""Single-event transactions are handed over in runs while the component takes them in no time: progress is then noted
once a run. A component that takes its time gets them one by one, so that little comes again after a crash."""


class Lane:
    def __init__(
        self, name: str, subscriber: Subscriber, tables: frozenset[str], policy: LanePolicy, context: LaneContext
    ) -> None:
        self.name = name
        self.tables = tables
        self.policy = policy
        self.durable = is_durable(subscriber)
        self.state = LaneState.BOOTSTRAPPING
        self.serving = False  # `start` has ended: calls are made
        self.start_began: float | None = None
        self.reason: str | None = "never refreshed"
        self.not_live_since: float | None = context.clock.monotonic()
        self.position = Position(0)  # everything up to here is done
        self.contained: RefreshedSnapshot | None = None
        self.counts = LaneCounts()
        self.breaker = Breaker(name, policy.breaker_failures)
        self.queue = LaneQueue(policy.max_events, policy.max_bytes)
        self._subscriber = subscriber
        self._context = context
        self._clock = context.clock
        self.may_deliver = context.may_deliver
        self._seen = Position(0)  # the stream has come this far
        self._not_enough: str | None = self.reason  # why what waits here is of no use: a refresh has to begin (again)
        self._anew = False  # another history has begun, where it starts is not known yet
        self._cramped = False  # the refresh under way lost what came meanwhile, for want of room
        self._behind = False  # what came after the queue is not in it: it is read again, see `_catch_up`
        self._ahead: LaneQueue | None = None  # what the stream brings while that is done
        self._tries = 0  # attempts since it is held
        self._moved = 0.0  # when the delivery under way began, or what waits for it came
        self._run_events = 1  # handed over together; grows while the component is quick
        self._wake = asyncio.Event()
        self._worker = Calls(name, policy, self._clock)
        self._delivery = Delivery(name, subscriber, policy, self._clock, self.breaker, self)
        self._worker.serve(self._delivery)
        self._health = HealthCheck(name, subscriber, policy.health_timeout_s, context.failures)

    # -- from the router: never waits -------------------------------------------------------------------

    def offer(self, batch: EventBatch) -> None:
        """Transactions that concern this lane, in order, only its own tables' events in them."""
        seen, self._seen = self._seen, max(self._seen, batch.position)
        if self._not_enough is not None:
            return  # the snapshot of a later refresh will contain it
        if self._behind:
            self._offer_ahead(batch, seen)
            return
        if not self.queue:
            self._moved = self._clock.monotonic()
        plain = self.contained is None and not batch.has_unlisted and batch.first.position > seen
        if (plain and self.queue.put(batch)) or all(
            self._accept(transaction, seen) for transaction in batch.transactions
        ):
            self._wake.set()

    def _accept(self, transaction: Transaction, seen: Position) -> bool:
        """False if the lane has been left for it."""
        if transaction.position <= seen:  # comes again after a reconnect
            return True
        contained = self.contained
        if contained is not None:
            if contained.splits(transaction):
                self.refresh(f"the last refresh contained only some of what was joined at {transaction.position}")
                return False
            if contained.holds(transaction):
                return True
        if transaction.unlisted:
            self.refresh(f"a transaction at {transaction.position} changed too much to be told event by event")
            return False
        if not self.queue.put(EventBatch.of([transaction])):
            self._overflow(transaction)
            return False
        return True

    def _offer_ahead(self, batch: EventBatch, seen: Position) -> None:
        if self._ahead is not None:
            new = [transaction for transaction in batch.transactions if transaction.position > seen]
            if new and not self._ahead.put(EventBatch.of(new)):
                self._ahead = None  # begins again with the next batch that is read

    def passed(self, position: Position) -> None:
        """The stream has come this far without anything for this lane."""
        self._seen = max(self._seen, position)
        if not self.queue and self.state.keeps_position() and not self._behind:
            self._done_to(self._seen)

    # -- from anybody: never waits ----------------------------------------------------------------------

    def resume_at(self, position: Position, contained: RefreshedSnapshot | None) -> None:
        """From the ledger: no refresh needed, everything up to `position` is done."""
        self.position = self._seen = position
        self.contained = contained
        self._not_enough = None
        self._enter(LaneState.LIVE, None)

    def start_over(self, reason: str) -> None:
        """Another history begins: positions start anew, and nothing known so far holds."""
        self.position = self._seen = Position(0)
        self.contained = None
        self._anew = True
        if self.state.keeps_position():
            self._leave(LaneState.RECOVERING, reason)
        else:
            self._forget()
            self._not_enough = reason

    def started(self, position: Position) -> None:
        """The stream brings everything after `position`, some of it maybe again: has it left out anything?"""
        seen, self._seen = self._seen, max(self._seen, position)
        anew, self._anew = self._anew, False
        if seen < position and self._not_enough is None and not anew:
            self.refresh(f"the source goes on at {position}, this component had come to {seen}")

    def open_circuit(self, reason: str) -> None:
        """The component can't keep up or can't work: nothing is kept for it until it has recovered by a refresh. One
        that holds keeps its position.
        """
        if self.state in (LaneState.BROKEN, LaneState.PAUSED, LaneState.HELD):
            return
        if self.holds and self.state.keeps_position():
            self._hold(reason)
        else:
            self.force_open_circuit(reason)

    def force_open_circuit(self, reason: str) -> None:
        """As `open_circuit`, also of a component that holds: the database can't keep more for it."""
        self.breaker.trip()
        self.counts.broken += 1
        self._leave(LaneState.BROKEN, reason)

    @property
    def holds(self) -> bool:
        return self.policy.on_exhausted == "hold"

    def _hold(self, reason: str) -> None:
        """Nothing is dropped: what could not be delivered is tried again, and the database keeps what follows."""
        if self.state is not LaneState.HELD:
            self.counts.broken += 1
            self._tries = 0
        self.breaker.trip()
        self._enter(LaneState.HELD, reason)
        self._worker.leave()

    def refresh(self, reason: str) -> None:
        """Forget what waits and read the registry instead."""
        if self.state.refreshes():
            self._forget()
            self._not_enough = reason
        elif self.state is not LaneState.PAUSED:
            self._leave(LaneState.RECOVERING, reason)

    def pause(self) -> None:
        self._leave(LaneState.PAUSED, "paused by an operator")

    def resume(self) -> None:
        if self.state is LaneState.PAUSED:
            self._leave(LaneState.RECOVERING, "resumed by an operator")

    @property
    def stuck_s(self) -> float:
        """How long the same delivery has been tried; 0 if nothing waits, or if the component is not live anyway."""
        return self._clock.monotonic() - self._moved if self.queue and self.state is LaneState.LIVE else 0.0

    @property
    def shown_state(self) -> LaneState:
        """One that goes on from its position is not live before its `start` has ended."""
        return LaneState.BOOTSTRAPPING if self.state is LaneState.LIVE and not self.serving else self.state

    @property
    def shown_reason(self) -> str | None:
        """With the call that is under way, if the component is not live."""
        shown = self.shown_state
        call, began = ("start", self.start_began) if not self.serving else ("on_refresh", self._worker.refresh_began)
        if shown is LaneState.LIVE or began is None:
            return self.reason
        under_way = f"{call} has been running for {self._clock.monotonic() - began:.0f} s"
        return under_way if self.reason is None else f"{self.reason} ({under_way})"

    def stuck_work(self) -> list[Work]:
        """What the component does in the background without making progress."""
        if not self.serving or not isinstance(self._subscriber, ReportsWork):
            return []
        try:
            return [work for work in self._subscriber.work() if work.stuck]
        except Exception as error:
            self.failed("work", error)
            return []

    @property
    def package(self) -> str:
        """Where the component's code is."""
        module = type(self._subscriber).__module__
        parent = module.rpartition(".")[0]
        return parent if "." in parent else module

    @property
    def owes_refresh(self) -> bool:
        return self.state is not LaneState.LIVE

    @property
    def calls(self) -> int:
        """Deliveries made, repeated ones included."""
        return self._delivery.calls

    @property
    def failures(self) -> int:
        """Of those, the ones that failed."""
        return self._delivery.failures

    @property
    def out_of_breath(self) -> bool:
        """It has more to do at once and only lets others go first: no use in reading more for it now. One that reads
        again what it missed is not waited for: the stream is not read for it.
        """
        return self._delivery.out_of_breath and not self._behind

    # -- the worker -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; a call under way is cancelled too, and waited for no longer than `drain_timeout_s`."""
        monitors = [
            asyncio.create_task(self._worker.watch(self.may_deliver, self.open_circuit), name=f"{self.name}: watchdog"),
            asyncio.create_task(self._check_health(), name=f"{self.name}: health"),
        ]
        task = self._worker.start(self._work())
        try:
            await asyncio.wait({task})
            task.result()  # raises what ended it: a fault of ours, the component's own stay inside
        finally:
            self._worker.over = self._delivery.halted = True
            for monitor in monitors:
                monitor.cancel()
            await asyncio.gather(*monitors, return_exceptions=True)
            await self._worker.stop()

    @property
    def straggler(self) -> asyncio.Task[None] | None:
        """The worker's task, if the lane has ended and a call that ignores its cancellation has not."""
        return self._worker.straggler

    async def _work(self) -> None:
        self._worker.begun()
        self.serving = True
        while not self._worker.over:
            try:
                await self._step()
            except (asyncio.CancelledError, GeneratorExit) as error:
                self.returned(error)
            except DeliveryCancelled:
                continue
            except Undeliverable as dropped:
                if not self.wanted():
                    continue  # broken out meanwhile, with a reason of its own
                if self.holds:
                    self._keep_undelivered()
                    self._hold(str(dropped))
                    continue
                self.counts.dropped += 1
                if self.breaker.closed and treatment(dropped.error).action is not Action.BREAK:
                    self.refresh(str(dropped))
                else:
                    self.open_circuit(str(dropped))
            except BaseException as error:
                log.exception("the lane's worker failed", component=self.name)
                self.open_circuit(f"{error!r} ({treatment(error).hint})")

    async def _step(self) -> None:
        match self.state:
            case LaneState.LIVE:
                await self._deliver()
            case LaneState.BOOTSTRAPPING | LaneState.RECOVERING:
                await self._recover()
            case LaneState.HELD:
                await self._try_again()
            case LaneState.BROKEN:
                await self._clock.sleep(self.policy.breaker_reset_s)
                if self.state is LaneState.BROKEN and await self._health.ask():
                    self._enter(LaneState.RECOVERING, f"was broken: {self.reason}")
            case LaneState.PAUSED:
                await self._woken()

    async def _deliver(self) -> None:
        await self._deliver_waiting()
        if self.state is LaneState.LIVE and not self._worker.over:
            if self._behind:
                await self._catch_up()
                return
            self._done_to(max(self.position, self._seen))
            await self._woken()

    async def _deliver_waiting(self) -> None:
        queue, delivery = self.queue, self._delivery
        while queue and self.state is LaneState.LIVE and not self._worker.over:
            batch = delivery.take(queue, self._run_events)
            began = self._moved = self._clock.monotonic()
            await delivery.deliver(batch, queue.delivered)
            if not self._delivered(batch):
                return
            quick = self._clock.monotonic() - began < _QUICK_S
            self._run_events = min(self._run_events * 2, _LONGEST_RUN) if quick else 1

    def _delivered(self, batch: EventBatch) -> bool:
        """False if the lane was left meanwhile: what waits now is not what we took from."""
        if self._worker.interrupted:
            self.returned(None)
        if not self.wanted():
            return False
        self.queue.done()
        self._done_to(batch.position)
        self.counts.count(batch, self._clock.now_ms())
        return True

    # -- holding ----------------------------------------------------------------------------------------

    def _keep_undelivered(self) -> None:
        """Of a run that failed in the middle, what was delivered before does not come again."""
        done = self.queue.advance(self._delivery.done)
        if done is not None:
            self._done_to(done.position)
            self.counts.count(done, self._clock.now_ms())
        self._run_events = 1

    async def _try_again(self) -> None:
        """One attempt with what could not be delivered, and live again if it succeeds."""
        self._tries += 1
        await self._clock.sleep(backoff(self.policy, self._tries, self._clock))
        if self.state is not LaneState.HELD or not await self._health.ask() or self.state is not LaneState.HELD:
            return
        if self.queue:
            batch = self._delivery.take(self.queue, 1)
            self._delivery.once = True
            try:
                await self._delivery.deliver(batch, self.queue.delivered)
            finally:
                self._delivery.once = False
            if not self._delivered(batch):
                return
        if self.state is LaneState.HELD:
            self.breaker.close()
            log.info("component is no longer held", component=self.name, attempts=self._tries, reason=self.reason)
            self._enter(LaneState.LIVE, None)

    async def _catch_up(self) -> None:
        """Read again what did not fit the queue, until the stream goes on where that ends."""
        replay = self._context.replay
        if replay is None:
            self.force_open_circuit("its queue was full, and this source can't be read again")
            return
        log.warning("component reads again what did not fit its queue", component=self.name, after=self.position)
        try:
            await self._read_again(replay)
        except (SourceError, ConfigError) as error:
            self._hold(f"what did not fit its queue can't be read again: {error}")

    async def _read_again(self, replay: Callable[[frozenset[str], Position], Replay]) -> None:
        mark = self._seen
        async with aclosing(replay(self.tables, self.position)) as batches:
            async for batch in batches:
                if isinstance(batch, Progress):
                    self._done_to(max(self.position, batch.position))
                elif not await self._redeliver(batch):
                    return
                if self._ahead is None:  # from here on what the stream brings is kept, as far as it fits
                    self._ahead, mark = LaneQueue(self.policy.max_events, self.policy.max_bytes), self._seen
                if self.position >= mark:
                    self._caught_up(self._ahead)
                    return

    async def _redeliver(self, transactions: Sequence[Transaction]) -> bool:
        """False if the lane is not live any more: what was not delivered is read again later, or refreshed."""
        last = self.position
        for transaction in transactions:
            if not self.queue.fits(transaction):
                await self._deliver_waiting()
            if self.state is not LaneState.LIVE or not self._accept(transaction, last):
                return False
            last = max(last, transaction.position)
        await self._deliver_waiting()
        if self.state is LaneState.LIVE and not self.queue:
            self._done_to(max(self.position, last))
        return self.state is LaneState.LIVE and not self._worker.over

    def _caught_up(self, ahead: LaneQueue) -> None:
        self._behind, self._ahead = False, None
        last = self.position
        for transaction in ahead:
            if not self._accept(transaction, last):
                break
        self._seen = max(self._seen, last)
        log.info("component has caught up", component=self.name, position=last)
        self._enter(LaneState.LIVE, None)

    def _done_to(self, position: Position) -> None:
        """What the last refresh contained is of interest until this lane, not only the stream, is past it: whoever goes
        on from here after a crash is brought all of it again.
        """
        self.position = position
        if self.contained is not None and position >= self.contained.until:
            self.contained = None

    async def _woken(self) -> None:
        self._wake.clear()
        if not self.queue:
            self._delivery.rested()
            await self._wake.wait()

    async def _recover(self) -> None:
        """HealthCheck, snapshot, `on_refresh`, then what came meanwhile and is not in the snapshot."""
        failures = 0
        while self.state.refreshes():
            if not await self._health.ask():
                self.open_circuit(f"not healthy before its refresh: {self._health.reason}")
                return
            # Debts first: a crash that finds the position of before the refresh would bring events that it contained.
            await self._context.indebted(self.name)
            start = self._start_collecting()
            try:
                contained = await self._read_snapshot(list(self._context.recent()))
            except (asyncio.CancelledError, GeneratorExit) as cancelled:
                error = self.returned(cancelled) or cancelled
                error.__cause__ = cancelled if error is not cancelled else None
            except BaseException as raised:
                error = raised
            else:
                if self._worker.over:
                    return
                if any(contained.splits(transaction) for transaction in self.queue):
                    self.refresh("it contained only some of what was joined in the change log")
                if self._not_enough is None:
                    self._go_live(start, contained)
                    return
                log.warning("the refresh has to be repeated", component=self.name, reason=self._not_enough)
                if self._cramped:
                    self._make_room()
                continue
            if not self.state.refreshes():
                return
            failures += 1
            self.counts.failed_refreshes += 1
            self.failed("on_refresh", error)
            log.warning("refresh failed", component=self.name, error=repr(error), hint=treatment(error).hint)
            if self.breaker.failed(error) or failures >= self.policy.attempts:
                self.open_circuit(f"refresh failed: {error!r} ({treatment(error).hint})")
                return
            await self._clock.sleep(backoff(self.policy, failures, self._clock))

    def _start_collecting(self) -> Position:
        """From here on the queue collects what a snapshot taken later may lack."""
        self._forget()
        self.contained = self._not_enough = None
        self._cramped = False
        return self._seen

    async def _read_snapshot(self, seen: list[Commit]) -> RefreshedSnapshot:
        limit = asyncio.timeout(_SNAPSHOT_WITHIN_S)
        async with limit, snapshot_after(self._context.store, seen, self._clock) as (snapshot, contained):
            limit.reschedule(None)
            while not self.may_deliver():
                await self._clock.sleep(_DOUBT_S)
            self._worker.refreshing(True)
            try:
                await self._subscriber.on_refresh(snapshot)
            except BaseException as error:
                failure = self.returned(error)
                if failure is None or failure is error:
                    raise
                raise failure from error
            else:
                self.returned(None)
            finally:
                self._worker.refreshing(False)
            return contained

    def _go_live(self, start: Position, contained: RefreshedSnapshot) -> None:
        self.counts.refreshes += 1
        self.breaker.close()
        self.position = start
        self.contained = contained
        self.queue.keep(lambda transaction: not contained.holds(transaction))
        self.queue.max_events, self.queue.max_bytes = self.policy.max_events, self.policy.max_bytes
        self._enter(LaneState.LIVE, None)

    def _overflow(self, transaction: Transaction) -> None:
        events, size = len(transaction.events), transaction.size_bytes
        if not self.state.keeps_position():
            self._cramped = True
            self.refresh("writers were quicker than the refresh")
        elif events > self.policy.max_events or size > self.policy.max_bytes:
            self.refresh(f"a transaction of {events} events ({size} bytes) is larger than the lane")
        elif self.holds:
            self._behind = True
            if self.state is LaneState.LIVE:
                self._enter(LaneState.LIVE, "its queue was full: what follows is read again from the database")
        else:
            self.open_circuit(
                f"fell behind: {self.queue.events} events ({self.queue.size_bytes} bytes) wait, "
                f"and a transaction of {events} more does not fit"
            )

    def _make_room(self) -> None:
        """A refresh that works but is slower than the writers gets more room each time, so that it converges under any
        load. One that never ends gets none: it holds no more than the lane's own measure.
        """
        self.queue.max_events *= 2
        self.queue.max_bytes *= 2
        log.info("more may wait during the next refresh", component=self.name, events=self.queue.max_events)

    # -- state ------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """What waits is of no use any more."""
        self.queue.clear()
        self._behind, self._ahead = False, None

    def _leave(self, state: LaneState, reason: str) -> None:
        """From outside the worker: it has `drain_timeout_s` to finish the call it is in."""
        if self.holds and self.state.keeps_position():
            log.error("component loses events that it wanted to hold", component=self.name, reason=reason)
            self.counts.dropped += 1
        self._forget()
        self._not_enough = reason
        self._enter(state, reason)
        self._worker.leave()

    def _enter(self, state: LaneState, reason: str | None) -> None:
        if state is self.state and reason == self.reason:
            return
        level = log.info if state in (LaneState.LIVE, LaneState.BOOTSTRAPPING) else log.warning
        if state is LaneState.HELD:
            level = log.error
        level("component is " + state, component=self.name, was=str(self.state), reason=reason)
        if state is LaneState.LIVE:
            self.not_live_since = None
        elif self.state is LaneState.LIVE:
            self.not_live_since = self._clock.monotonic()
        self.state, self.reason = state, reason
        self._wake.set()
        self._context.changed()

    # -- what its delivery asks -------------------------------------------------------------------------

    def returned(self, error: BaseException | None) -> BaseException | None:
        return self._worker.returned(error)

    def failed(self, call: str, error: BaseException) -> None:
        self._context.failures.note(self.name, call, error)

    def wanted(self) -> bool:
        return self.state.keeps_position() and not self._worker.over

    async def _check_health(self) -> None:
        while True:
            await self._clock.sleep(self.policy.health_interval_s)
            if self.state is LaneState.LIVE and not await self._health.ask() and self.state is LaneState.LIVE:
                self.open_circuit(f"health check failed: {self._health.reason}")
