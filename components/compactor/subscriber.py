"""The subscriber: counts and decides within a delivery, and does everything else in tasks.

Nothing here holds up a delivery. Whatever a stop or a crash interrupts is found again: counts in the registry's rows,
claims in its journal, files by their intents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol, runtime_checkable
from uuid import uuid4

import msgspec
import structlog

from astha.errors import Retry
from astha.events import Event, Operation
from astha.subscribers import ComponentContext, Metric, Problem, Work
from components.compactor.execution.failpoints import Reached, go_on
from components.compactor.execution.job import Workshop
from components.compactor.execution.outcome import Outcome
from components.compactor.execution.planner import Planning, Wish
from components.compactor.execution.running_jobs import Crew
from components.compactor.journal_writer import Records
from components.compactor.metrics import Tallies
from components.compactor.scheduling.budget import Limits
from components.compactor.scheduling.explanation import explain_decision
from components.compactor.scheduling.file_selection import Plan
from components.compactor.scheduling.policy import PolicyProblem
from components.compactor.scheduling.scheduler import Candidate, Decider
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor_protocol import Executor, SessionProblem
from components.compactor.spark.process_memory import Memory
from components.lib.lake.storage.objects import Objects
from components.lib.problem_tracker import ProblemTracker
from registry.contract import ConsistentRead
from registry.errors import RegistryError
from registry.models import Row, TableFile, TableStats
from registry.privileges import Area

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
_SHORTEST_S = 0.01  # between two looks at what may begin, if nothing happens
_NOTES_EVERY_S = 0.1  # what was decided meanwhile is written in one call
_STUCK_S = 3600.0  # a job that finishes no group for so long is reported; one that is merged takes minutes
_FIRST_PROBE_S, _LONGEST_PROBE_S = 5.0, 300.0


@runtime_checkable
class Weighed(Protocol):
    """An executor that knows what its processes hold."""

    async def memory(self) -> Memory: ...


class Compactor:
    written_areas = frozenset((Area.LAKE,))
    durable = False

    def __init__(
        self,
        settings: CompactorSettings,
        context: ComponentContext,
        open_executor: Callable[[], Executor],
        reached: Reached = go_on,
    ) -> None:
        store, clock, policy = context.store, context.clock, settings.policy
        self._settings = settings
        self._context = context
        self._store = store
        self._clock = clock
        self._open_executor = open_executor
        self._executor: Executor | None = None
        self._reached = reached
        limits = Limits(concurrent_jobs=settings.jobs, bytes_per_hour=settings.bytes_per_hour)
        self._decider = Decider(policy, limits, clock)
        self._records = Records(store, clock, self._decider, context.clock_guard)
        self._planning = Planning(store, clock, context.lake, policy, settings.memory_bytes, reached)
        self._crew: Crew | None = None
        self._looked: dict[str, tuple[tuple[int, int], float]] = {}  # jobs: how far they were, and since when
        self._restored = False  # what the journal knows from before
        self._tallies = Tallies(clock)
        self._memory: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbers = count(1)
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._trouble: SessionProblem | None = None
        self._troubles = ProblemTracker(clock)

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset((TableFile.table, TableStats.table))

    async def start(self) -> None:
        if self._executor is None:
            self._executor = self._open_executor()
        settings = self._settings
        self._crew = Crew(
            Workshop(
                store=self._store,
                executor=self._executor,
                objects=Objects(self._context.lake),
                clock=self._clock,
                owner=f"compactor {uuid4().hex[:8]}",
                limits=settings.limits,
                reached=self._reached,
            )
        )
        self._restored = False

    async def stop(self) -> None:
        """Jobs under way end and leave nothing, or nothing that the cleaner does not find."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        executor, self._executor = self._executor, None
        self._trouble = None
        if executor is not None:
            await executor.close()

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transaction([event])

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        for event in events:
            if event.operation is not Operation.INSERT and isinstance(event.data, TableFile):
                self._at_work.touch(event.data.file_path)
        made = self._decider.apply(events)
        self._tallies.decided(made)
        self._news.set()
        self._wake.set()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Counts everything. Jobs begin after the first one, and never by a part of the files."""
        if not self._restored:
            await self._decider.restore(self._store)
            self._restored = True
        self._tallies.decided(await self._decider.load(snapshot))
        self._news.set()
        self._wake.set()
        self._begin("dispatch", self._always(self._dispatch))
        self._begin("notes", self._always(self._take_notes))
        self._begin("upkeep", self._always(self._keep_up))

    @property
    def trouble(self) -> str | None:
        """Why nothing can be merged now."""
        return None if self._trouble is None else str(self._trouble)

    async def on_health(self) -> bool:
        """While Spark can't be had nothing is merged: the reason is shown, and it is tried again in the background."""
        if self._trouble is not None:
            raise self._trouble
        return True

    def work(self) -> list[Work]:
        """Jobs under way, by how long ago the last look saw them move."""
        now, before = self._clock.monotonic(), self._looked
        self._looked = {}
        found = []
        for job in self._crew or ():
            done = (job.bytes_done, job.groups_done)
            last = before.get(job.operation_id, (done, job.began))
            since = last[1] if last[0] == done else now
            self._looked[job.operation_id] = (done, since)
            found.append(Work(f"the compaction of {job.assignment.name}", now - since, _STUCK_S))
        return found

    def metrics(self) -> Iterator[Metric]:
        yield from self._tallies.metrics(() if self._crew is None else self._crew)
        yield from self._tallies.waiting(self._decider)
        yield from self._tallies.left_out(self._planning.left_out, self._decider.tables)
        yield Metric("trouble", "1 while there is no Spark session to be had.", self._trouble is not None)
        for part, size in self._memory.items():
            told = "Memory of the session's processes on this machine, as of the last look."
            yield Metric("memory_bytes", told, size, {"process": part})

    def problems(self) -> Iterator[Problem]:
        """Of partitions whose last compaction failed or hangs, or with files that are left out, and of tables whose
        settings can't be read.
        """
        counters = self._decider.counters
        self._troubles.keep(lambda key: counters.of(key) is not None)  # type: ignore[arg-type]  # a partition's
        yield from self._troubles.listed()
        yield from self._left_out_files()
        yield from self._stuck_jobs()
        for table_id in self._decider.tables.known():
            known = self._decider.tables.of(table_id)
            if known.problem is not None:
                yield Problem(known.name, known.problem, known.read_at)

    def _left_out_files(self) -> Iterator[Problem]:
        for (table_id, path), waits in self._planning.left_out:
            file, wait = min(waits.items(), key=lambda item: item[1].until_ms)
            more = "" if len(waits) == 1 else f" (and {len(waits) - 1:,} more files)"
            subject = f"{self._decider.tables.name(table_id) or f'table {table_id}'} {path}".strip()
            reason = f"left out of compaction: {file} {wait.reason}{more}"
            yield Problem(subject, reason, wait.since_ms, wait.times, wait.until_ms)

    def _stuck_jobs(self) -> Iterator[Problem]:
        now, monotonic = self._clock.now_ms(), self._clock.monotonic()
        for job in () if self._crew is None else self._crew:
            if job.stuck:
                subject = f"{job.assignment.name} {job.assignment.partition_path}".strip()
                reason = "its merge has not ended, and could not be ended: `astha compaction cancel`, and look at Spark"
                yield Problem(subject, reason, now - int((monotonic - job.began) * 1000))

    @property
    def _at_work(self) -> Crew:
        if self._crew is None:
            raise Retry("the compactor has not started")
        return self._crew

    async def _dispatch(self) -> None:
        """Begin what may begin; wait for an event, an end, or the time at which something else may."""
        while True:
            self._wake.clear()
            while self._trouble is None and (candidate := self._decider.take()) is not None:
                self._begin(f"job {next(self._numbers)}", self._compact(candidate))
            wakes_at = self._decider.wakes_at()
            away_s = self._settings.check_every_s
            if wakes_at is not None and self._trouble is None:
                away_s = min(away_s, max(_SHORTEST_S, (wakes_at - self._clock.now_ms()) / 1000))
            await self._either(self._wake.wait(), self._clock.sleep(away_s))

    async def _compact(self, candidate: Candidate) -> None:
        """From the decision to its end. Whatever happens, the decider hears of it."""
        ended = Outcome(status="aborted")
        try:
            found = await self._compacted(candidate)
            if isinstance(found, Plan):
                self._decider.decline(candidate, found)
                return
            ended = found
        except PolicyProblem as problem:
            log.warning("a table can't be compacted", table_id=candidate.key[0], problem=str(problem))
            ended = Outcome(status="declined", reason=str(problem))
        except RegistryError as error:
            log.warning("a compaction could not be begun", table_id=candidate.key[0], error=str(error))
            ended = Outcome(status="failed", reason=str(error))
        except Exception as error:  # of this partition alone: it is tried again, later each time
            log.exception("a compaction could not be begun", table_id=candidate.key[0], partition=candidate.key[1])
            ended = Outcome(status="failed", reason=repr(error))
        finally:
            self._note(candidate, ended)
            if self._decider.runs(candidate.key):
                self._decider.finish(candidate, ended.status, swaps=ended.groups)
            self._wake.set()
            self._news.set()

    def _note(self, candidate: Candidate, ended: Outcome) -> None:
        table_id, path = candidate.key
        if ended.status == "failed":
            name = self._decider.tables.name(table_id) or f"table {table_id}"
            subject = f"{name}, partition {path}" if path else name
            self._troubles.failed(candidate.key, subject, ended.reason or "its compaction failed: see the log")
        elif ended.status in ("done", "declined"):
            self._troubles.worked(candidate.key)

    async def _compacted(self, candidate: Candidate) -> Outcome | Plan:
        """A plan that found nothing to do is the answer itself."""
        table_id, path = candidate.key
        decision = candidate.decision
        if await self._records.cancelled_since(table_id, path, decision.decided_at):
            return Outcome(status="cancelled")
        wish = Wish(
            trigger=decision.trigger,
            position=decision.position,
            decided=explain_decision(decision.verdict, decision.policy),
        )
        planned = await self._planning.plan(table_id, path, wish)
        if planned is None:
            self._decider.forget(table_id)
            return Outcome(status="aborted")
        self._decider.introduce(planned.table, planned.metadata)
        if planned.assignment is None:
            return planned.plan
        self._decider.spend(planned.assignment.input_bytes)
        await self._records.settled()
        outcome = await self._at_work.run(planned.assignment)
        self._planning.left_out.note(table_id, path, outcome.left_out)
        self._tallies.count(outcome)
        if isinstance(outcome.error, SessionProblem):
            self._suffer(outcome.error)
            return msgspec.structs.replace(outcome, status="aborted")
        return outcome

    def _suffer(self, problem: SessionProblem) -> None:
        if self._trouble is None:
            log.error("no Spark session: compaction waits for it", problem=str(problem))
        self._trouble = problem
        self._begin("probe", self._probe())

    async def _probe(self) -> None:
        """Until there is a session again, ever more seldom."""
        wait_s = _FIRST_PROBE_S
        while self._trouble is not None:
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_PROBE_S)
            try:
                if self._executor is not None:
                    await self._executor.health()
            except SessionProblem as problem:
                self._trouble = problem
            except Exception as error:
                log.warning("Spark does not answer yet", error=str(error))
            else:
                self._trouble = None
                log.info("there is a Spark session again")
        self._wake.set()

    async def _take_notes(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self._attempt("notes", self._records.catch_up):
                self._news.set()
                await self._clock.sleep(_AGAIN_S)
            self._wake.set()  # what was read of a table may change what is decided about it
            await self._clock.sleep(_NOTES_EVERY_S)

    async def _keep_up(self) -> None:
        settings = self._settings
        step = partial(self._records.keep_up, settings.stale_after_s, settings.keep_for_days)
        while True:
            await self._attempt("upkeep", step)
            executor: object = self._executor
            if isinstance(executor, Weighed):
                memory = await executor.memory()
                self._memory = {"jvm": memory.jvm, "workers": memory.workers}
            await self._clock.sleep(settings.check_every_s)
            self._news.set()

    async def _always(self, loop: Callable[[], Awaitable[None]]) -> None:
        """A fault of ours must not end for good what the daemon counts on."""
        while True:
            try:
                await loop()
            except Exception:
                log.exception("a loop of the compactor has failed, and begins again", loop=loop.__name__)
                await self._clock.sleep(_AGAIN_S)

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]]) -> bool:
        try:
            await step()
        except RegistryError as error:
            log.warning("will be tried again", step=what, error=str(error))
            return False
        return True

    async def _either(self, *work: Coroutine[None, None, object]) -> None:
        tasks = [asyncio.ensure_future(some) for some in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: str, work: Coroutine[None, None, None]) -> None:
        """One task a key; an error in it is logged."""
        if key in self._tasks:
            work.close()
            return
        task = asyncio.create_task(work, name=f"compactor {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the compactor has failed", task=task.get_name(), error=repr(error))
