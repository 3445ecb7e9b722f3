"""The subscriber: counts and decides within a delivery, and does everything else in background tasks.

After a stop or a crash nothing is lost: counts are in the registry's rows, claims in its journal, files have intents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from uuid import uuid4

import msgspec
import structlog

from astha.backoff import Backoff
from astha.subscribers import (
    Area,
    Component,
    ComponentContext,
    ConsistentRead,
    Event,
    Metric,
    Operation,
    Problem,
    RegistryError,
    Retry,
    Row,
    TableDeleteFile,
    TableFile,
    TableStats,
    Work,
)
from astha.tasks import BackgroundTasks, first_of
from components.compactor.execution.job_context import JobContext, Step, StepHook, ignore_step
from components.compactor.execution.outcome import JobOutcome
from components.compactor.execution.running_jobs import RunningJobs
from components.compactor.journal_writer import JournalWriter
from components.compactor.metrics import CompactorMetrics
from components.compactor.operations import OPERATIONS, CompactorOperations
from components.compactor.planning.file_selection import CompactionPlan
from components.compactor.planning.planner import CompactionRequest, Planner
from components.compactor.scheduling.budget import BudgetLimits
from components.compactor.scheduling.policy import PolicyProblem
from components.compactor.scheduling.scheduler import Candidate, Scheduler
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor_protocol import Executor, ReportsMemory, SessionProblem
from components.lib.lake.storage.objects import Objects
from components.lib.problem_tracker import ProblemTracker

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_MIN_WAIT_S = 0.01  # between two checks of what may begin
_JOURNAL_EVERY_S = 0.1  # decisions are written together
_STUCK_S = 3600.0  # a job that finishes no group for this long is reported; a merge takes minutes
_PROBE_BACKOFF = Backoff(initial_s=5.0, max_s=300.0)


class Compactor(Component):
    tables = (TableFile, TableStats, TableDeleteFile)
    durable = False
    written_areas = frozenset((Area.LAKE,))
    operations = OPERATIONS

    def __init__(
        self,
        settings: CompactorSettings,
        context: ComponentContext,
        open_executor: Callable[[], Executor],
        on_step: StepHook = ignore_step,
    ) -> None:
        store, clock, policy = context.store, context.clock, settings.policy
        self._settings = settings
        self._context = context
        self._store = store
        self._clock = clock
        self._open_executor = open_executor
        self._executor: Executor | None = None
        self._on_step = on_step
        limits = BudgetLimits(concurrent_jobs=settings.jobs, bytes_per_hour=settings.bytes_per_hour)
        self._scheduler = Scheduler(policy, limits, clock)
        self._journal_writer = JournalWriter(store, clock, self._scheduler, context.clock_guard)
        self._planner = Planner(store, clock, context.lake, policy, settings.memory_bytes)
        self._running_jobs: RunningJobs | None = None
        self._progress: dict[str, tuple[tuple[int, int], float]] = {}  # by job: bytes and groups done, and since when
        self._restored = False  # whether the journal was read
        self._metrics = CompactorMetrics(clock)
        self._memory: dict[str, int] = {}
        self._tasks = BackgroundTasks("compactor", clock)
        self._operations = CompactorOperations(store, clock, self._planner, policy, self._tasks)
        self._numbers = count(1)
        self._wake = asyncio.Event()
        self._unrecorded = asyncio.Event()
        self._session_problem: SessionProblem | None = None
        self._failures = ProblemTracker(clock)

    async def start(self) -> None:
        if self._executor is None:
            self._executor = self._open_executor()
        settings = self._settings
        self._running_jobs = RunningJobs(
            JobContext(
                store=self._store,
                executor=self._executor,
                objects=Objects(self._context.lake),
                clock=self._clock,
                owner=f"compactor {uuid4().hex[:8]}",
                limits=settings.limits,
                on_step=self._on_step,
                tracer=self._context.tracer,
            )
        )
        self._restored = False

    async def stop(self) -> None:
        """Running jobs end and leave nothing, or nothing that the cleaner does not find."""
        await self._tasks.stop()
        executor, self._executor = self._executor, None
        self._session_problem = None
        if executor is not None:
            await executor.close()

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        for event in events:
            if event.operation is not Operation.INSERT and isinstance(event.data, TableFile):
                self._jobs.input_changed(event.data.file_path)
        made = self._scheduler.apply(events)
        self._metrics.decided(made)
        self._unrecorded.set()
        self._wake.set()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Counts all files. No job begins before the first refresh."""
        if not self._restored:
            await self._scheduler.restore(self._store)
            self._restored = True
        self._metrics.decided(await self._scheduler.load(snapshot))
        self._unrecorded.set()
        self._wake.set()
        self._tasks.supervise("dispatch", self._dispatch)
        self._tasks.supervise("journal", self._write_journal)
        self._tasks.supervise("maintenance", self._maintain)

    @property
    def session_problem(self) -> str | None:
        """Why nothing can be merged now."""
        return None if self._session_problem is None else str(self._session_problem)

    async def on_health(self) -> bool:
        """Raises while there is no Spark session: nothing is merged then. A background task tries to get one."""
        if self._session_problem is not None:
            raise self._session_problem
        return True

    def work(self) -> list[Work]:
        """Returns the running jobs, with the time since their last progress."""
        now, before = self._clock.monotonic(), self._progress
        self._progress = {}
        found = []
        for job in self._running_jobs or ():
            done = (job.bytes_done, job.groups_done)
            last = before.get(job.operation_id, (done, job.began))
            since = last[1] if last[0] == done else now
            self._progress[job.operation_id] = (done, since)
            found.append(Work(f"the compaction of {job.spec.name}", now - since, _STUCK_S))
        return found

    async def operate(self, operation: str, table: str, arguments: Mapping[str, str]) -> object:
        match operation:
            case "compact":
                return await self._operations.compact(self._jobs, table, arguments.get("partition"))
            case "explain":
                return await self._operations.explain(table)
        return self._operations.progress(self._running_jobs or (), self._executor, self._metrics.remaining_s)

    def metrics(self) -> Iterator[Metric]:
        yield from self._metrics.metrics(() if self._running_jobs is None else self._running_jobs)
        yield from self._metrics.waiting(self._scheduler)
        yield from self._metrics.left_out(self._planner.left_out, self._scheduler.tables)
        yield Metric("session_unavailable", "1 while no Spark session can be had.", self._session_problem is not None)
        for part, size in self._memory.items():
            help_text = "Resident memory of the Spark session's processes on this machine."
            yield Metric("memory_bytes", help_text, size, {"process": part})

    def problems(self) -> Iterator[Problem]:
        """Yields partitions whose last compaction failed or hangs, or that have files left out, and tables whose
        settings can't be read.
        """
        counters = self._scheduler.counters
        self._failures.keep(lambda key: counters.of(key) is not None)  # type: ignore[arg-type]  # keys are partitions
        yield from self._failures.listed()
        yield from self._left_out_files()
        yield from self._stuck_jobs()
        for task, reason in self._tasks.failing().items():
            yield Problem(f"background task {task}", reason, self._clock.now_ms())
        for table_id in self._scheduler.tables.known():
            known = self._scheduler.tables.of(table_id)
            if known.problem is not None:
                yield Problem(known.name, known.problem, known.read_at)

    def _left_out_files(self) -> Iterator[Problem]:
        for (table_id, path), waits in self._planner.left_out:
            file, wait = min(waits.items(), key=lambda item: item[1].until_ms)
            more = "" if len(waits) == 1 else f" (and {len(waits) - 1:,} more files)"
            subject = f"{self._scheduler.tables.name(table_id) or f'table {table_id}'} {path}".strip()
            reason = f"left out of compaction: {file} {wait.reason}{more}"
            yield Problem(subject, reason, wait.since_ms, wait.times, wait.until_ms)

    def _stuck_jobs(self) -> Iterator[Problem]:
        now, monotonic = self._clock.now_ms(), self._clock.monotonic()
        for job in () if self._running_jobs is None else self._running_jobs:
            if job.stuck:
                subject = f"{job.spec.name} {job.spec.partition_path}".strip()
                reason = (
                    "its merge has not ended, and could not be ended: use `astha compaction cancel`, and check Spark"
                )
                yield Problem(subject, reason, now - int((monotonic - job.began) * 1000))

    @property
    def _jobs(self) -> RunningJobs:
        if self._running_jobs is None:
            raise Retry("the compactor has not started")
        return self._running_jobs

    async def _dispatch(self) -> None:
        """Begins jobs while the limits allow, then waits for an event, the end of a job, or the next time."""
        while True:
            self._wake.clear()
            while self._session_problem is None and (candidate := self._scheduler.take()) is not None:
                self._tasks.start(f"job {next(self._numbers)}", self._compact(candidate))
            if self._session_problem is None and self._scheduler.has_undecided():
                await asyncio.sleep(0)  # yield to the event loop
                continue
            wakes_at = self._scheduler.wakes_at()
            wait_s = self._settings.check_every_s
            if wakes_at is not None and self._session_problem is None:
                wait_s = min(wait_s, max(_MIN_WAIT_S, (wakes_at - self._clock.now_ms()) / 1000))
            await first_of(self._wake.wait(), self._clock.sleep(wait_s))

    async def _compact(self, candidate: Candidate) -> None:
        """Runs one candidate from its plan to its end, and always reports the end to the scheduler."""
        outcome = JobOutcome(status="aborted")
        try:
            found = await self._plan_and_run(candidate)
            if isinstance(found, CompactionPlan):
                self._scheduler.decline(candidate, found.verdict())
                return
            outcome = found
        except PolicyProblem as problem:
            log.warning("table can't be compacted", table_id=candidate.key[0], problem=str(problem))
            outcome = JobOutcome(status="declined", reason=str(problem))
        except RegistryError as error:
            log.warning("compaction could not begin", table_id=candidate.key[0], error=str(error))
            outcome = JobOutcome(status="failed", reason=str(error))
        except Exception as error:  # only this partition is affected: it is tried again, with backoff
            log.exception("compaction could not begin", table_id=candidate.key[0], partition=candidate.key[1])
            outcome = JobOutcome(status="failed", reason=repr(error))
        finally:
            self._note_failure(candidate, outcome)
            if self._scheduler.is_running(candidate.key):
                self._scheduler.finish(candidate, outcome.status, swaps=outcome.groups)
            self._wake.set()
            self._unrecorded.set()

    def _note_failure(self, candidate: Candidate, outcome: JobOutcome) -> None:
        table_id, path = candidate.key
        if outcome.status == "failed":
            name = self._scheduler.tables.name(table_id) or f"table {table_id}"
            subject = f"{name}, partition {path}" if path else name
            self._failures.failed(candidate.key, subject, outcome.reason or "its compaction failed: see the log")
        elif outcome.status in ("done", "declined"):
            self._failures.worked(candidate.key)

    async def _plan_and_run(self, candidate: Candidate) -> JobOutcome | CompactionPlan:
        """Returns the plan if it has nothing to merge, else the outcome of the job."""
        table_id, path = candidate.key
        decision = candidate.decision
        if await self._journal_writer.cancelled_since(table_id, path, decision.decided_at):
            return JobOutcome(status="cancelled")
        request = CompactionRequest(
            trigger=decision.trigger,
            position=decision.position,
            decided=decision.explanation(),
        )
        await self._on_step(Step.PLAN)
        planned = await self._planner.plan(table_id, path, request)
        if planned is None:
            self._scheduler.forget(table_id)
            return JobOutcome(status="aborted")
        self._scheduler.introduce(planned.table, planned.metadata)
        if planned.spec is None:
            return planned.plan
        self._scheduler.spend(planned.spec.input_bytes)
        await self._journal_writer.wait_written()
        outcome = await self._jobs.run(planned.spec)
        self._planner.left_out.note(table_id, path, outcome.left_out)
        self._metrics.count(outcome)
        if isinstance(outcome.error, SessionProblem):
            self._wait_for_session(outcome.error)
            return msgspec.structs.replace(outcome, status="aborted")
        return outcome

    def _wait_for_session(self, problem: SessionProblem) -> None:
        if self._session_problem is None:
            log.error("no Spark session, compaction waits", problem=str(problem))
        self._session_problem = problem
        self._tasks.start("session probe", self._probe_session())

    async def _probe_session(self) -> None:
        """Tries to get a session, with backoff, until there is one."""
        failures = 0
        while self._session_problem is not None:
            failures += 1
            await self._clock.sleep(_PROBE_BACKOFF.wait_s(failures, self._clock))
            try:
                if self._executor is not None:
                    await self._executor.health()
            except SessionProblem as problem:
                self._session_problem = problem
            except Exception as error:
                log.warning("Spark session does not answer yet", error=str(error))
            else:
                self._session_problem = None
                log.info("Spark session available again")
        self._wake.set()

    async def _write_journal(self) -> None:
        while True:
            await self._unrecorded.wait()
            self._unrecorded.clear()
            if not await self._attempt("journal", self._journal_writer.catch_up):
                self._unrecorded.set()
                await self._clock.sleep(_RETRY_S)
            self._wake.set()  # tables that were read may change decisions
            await self._clock.sleep(_JOURNAL_EVERY_S)

    async def _maintain(self) -> None:
        settings = self._settings
        step = partial(self._journal_writer.maintain, settings.stale_after_s, settings.keep_for_days)
        while True:
            await self._attempt("maintenance", step)
            executor: object = self._executor
            if isinstance(executor, ReportsMemory):
                memory = await executor.memory()
                self._memory = {"jvm": memory.jvm, "workers": memory.workers}
            await self._clock.sleep(settings.check_every_s)
            self._unrecorded.set()

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]]) -> bool:
        try:
            await step()
        except RegistryError as error:
            log.warning("registry error, will be retried", step=what, error=str(error))
            return False
        return True
