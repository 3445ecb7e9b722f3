"""A job: the groups of one partition, a few in parallel, under one claim.

What goes wrong, and what the job does then:

    an input was removed or changed     merges the group again without it, if enough are left; the next time in halves,
                                        which are merged sooner; aborted if no group is left
    out of memory                       merges the group in halves, down to two files; then as below
    a file can't be read, the worker    reads each file alone, leaves bad ones out and merges the others; if none is
    crashes, or takes too long          bad, merges the group in halves, down to two files; then failed
    the JVM died                        merges the group again, in a new session, a few times; then failed
    storage does not answer             merges the group again, a few times; then failed
    the merge can't be done, or its     swaps nothing and continues with the other groups; failed if none is left
    result is not its input
    cancelled, stopped, table dropped   stops, and leaves nothing
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from uuid import uuid4

import structlog

from astha.backoff import Backoff
from astha.tasks import to_completion
from components.compactor.execution.cancellation import Cancellation, InputsChanged, JobStopped
from components.compactor.execution.claim import Claim
from components.compactor.execution.group_queue import GroupQueue, PendingGroup
from components.compactor.execution.group_runner import GroupRunner
from components.compactor.execution.job_context import JobContext, Step
from components.compactor.execution.outcome import JobOutcome, JobTotals
from components.compactor.execution.output_names import OutputNames
from components.compactor.execution.swap import ResultMismatch, Swap, SwapUncertain
from components.compactor.merge import BadInput, MergeFailed, UnmergeableFile
from components.compactor.planning.compaction_spec import CompactionSpec, halves
from components.compactor.spark.executor_protocol import (
    JobFailed,
    OutOfMemory,
    SessionLost,
    SparkError,
    TaskTimeout,
    WorkerCrashed,
)
from components.lib.lake.isolation import ChildNotStarted
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.storage.objects import ObjectMissing, StorageError, StorageUnavailable
from registry.errors import Conflict, RegistryError
from registry.models import TableFile

log = structlog.get_logger(__name__)

_STOPPED = "the compactor was stopped"
_MIN_FILES = 2
_LONGEST_RETRY_S = 60.0


class CompactionJob:
    def __init__(self, spec: CompactionSpec, context: JobContext) -> None:
        self.spec = spec
        self.operation_id = f"compaction-{uuid4().hex}"
        self.cancellation = Cancellation()
        self.began = context.clock.monotonic()
        self.bytes_done = 0
        self._context = context
        self._totals = JobTotals()
        self._names = OutputNames(
            context.store,
            context.clock,
            self.operation_id,
            spec.table.id,
        )
        self._groups = GroupRunner(spec, context, self._names, self.cancellation, self._on_swap)
        self._queue = GroupQueue(())
        self._numbers = count(1)
        self._error: Exception | None = None  # the first one of a group that can't be merged
        self._too_few: str | None = None  # why a group was not merged
        self._due: dict[object, float] = {}  # by running group: when it should have ended, on the monotonic clock

    @property
    def stuck(self) -> bool:
        """Whether a group has not ended although its time limit has passed."""
        now = self._context.clock.monotonic()
        return any(now > due for due in self._due.values())

    @property
    def bytes_total(self) -> int:
        return self.spec.input_bytes

    @property
    def groups_done(self) -> int:
        return self._totals.groups

    async def run(self) -> JobOutcome:
        """Raises only when it is cancelled, and then after everything of it was removed."""
        with self._context.tracer.trace("compaction", table=self.spec.name, operation_id=self.operation_id) as span:
            outcome = await self._run()
            span.set(status=outcome.status, files_in=outcome.input_files, files_out=outcome.output_files)
            if outcome.status == "failed":
                span.fail(outcome.reason or "failed")
        return outcome

    async def _run(self) -> JobOutcome:
        context, limits = self._context, self._context.limits
        try:
            await context.on_step(Step.CLAIM)
            claim = await self._claim()
        except Conflict as error:
            return JobOutcome(status="declined", reason=str(error), error=error)
        except RegistryError as error:
            return JobOutcome(status="failed", reason=str(error), error=error)
        heartbeat = asyncio.create_task(claim.heartbeat(limits.heartbeat_s, self._names, self.cancellation))
        try:
            outcome = await self._work()
        except asyncio.CancelledError:
            await to_completion(claim.finish(self._stopped()))
            raise
        finally:
            heartbeat.cancel()
        await context.on_step(Step.FINISH)
        await to_completion(claim.finish(outcome))
        self._log(outcome)
        return outcome

    async def _claim(self) -> Claim:
        """A cancellation takes precedence over errors, and ends a claim that was taken all the same."""
        context = self._context
        found: list[Claim | RegistryError] = []

        async def take() -> None:
            stale_s = context.limits.stale_after_s
            try:
                found.append(
                    await Claim.take(context.store, context.clock, self.spec, self.operation_id, context.owner, stale_s)
                )
            except RegistryError as error:
                found.append(error)

        try:
            await to_completion(take())
        except asyncio.CancelledError:
            if found and isinstance(found[0], Claim):
                await to_completion(found[0].finish(self._stopped()))
            raise
        if isinstance(found[0], RegistryError):
            raise found[0]
        return found[0]

    async def _work(self) -> JobOutcome:
        """Returns an outcome for every end but a cancellation."""
        totals = self._totals
        try:
            await self._merge_groups()
        except JobStopped as stopped:
            partly = totals.groups and stopped.status == "aborted"
            return totals.outcome("done" if partly else stopped.status, stopped.reason)
        except (SwapUncertain, SparkError, StorageError, RegistryError, SchemaProblem) as error:
            return totals.outcome("failed", str(error), error)
        except Exception as error:
            log.exception("compaction failed for an unknown reason", table=self.spec.name)
            return totals.outcome("failed", f"{type(error).__name__}: {error}", error)
        problem = totals.problem or (self._too_few if self._error is None else str(self._error))
        if totals.groups:
            return totals.outcome("done", problem)
        if self._error is not None:
            return totals.outcome("failed", problem, self._error)
        return totals.outcome("aborted", problem or "nothing was left to merge")

    async def _merge_groups(self) -> None:
        groups = [
            PendingGroup(await self._still_there(group), min(self.spec.min_files, len(group)))
            for group in self.spec.groups
        ]
        self._queue = GroupQueue(groups)
        # The last group that a delete file names removes it, so each has to know what the others have done.
        parallel = 1 if self.spec.has_deletes else self._context.limits.parallel_groups
        await self._queue.run(self._merge_group, parallel)

    async def _merge_group(self, pending: PendingGroup) -> Sequence[PendingGroup]:
        """Returns the groups to merge instead. An error of these files alone is kept, and does not stop the others."""
        files = pending.files
        least = 1 if self.spec.has_deletes else _MIN_FILES
        if len(files) < max(least, pending.min_files):
            self._too_few = f"inputs were removed or changed meanwhile, the {len(files)} left are not worth a merge"
            return []
        try:
            await self._merge_files(files)
        except InputsChanged as changed:
            return self._without_changed(pending, changed)
        except OutOfMemory as error:
            return self._halved(pending, error) or await self._without_bad(pending, error)
        except (BadInput, ObjectMissing, WorkerCrashed, TaskTimeout) as error:
            return await self._without_bad(pending, error)
        except (MergeFailed, ResultMismatch) as error:
            return self._give_up(error)
        except (SessionLost, JobFailed, StorageUnavailable) as error:
            await self._recover(pending, error)
            return [pending]
        return []

    async def _merge_files(self, files: Sequence[TableFile]) -> None:
        began = self._context.clock.monotonic()
        key = object()
        self._due[key] = began + self._context.limits.stuck_after_s(sum(file.file_size for file in files))
        try:
            with self._context.tracer.span("merge group", files=len(files)):
                await self._groups.run(files, self._swap_id)
        finally:
            del self._due[key]
        self._totals.spent({"all": self._context.clock.monotonic() - began})

    def _without_changed(self, pending: PendingGroup, changed: InputsChanged) -> list[PendingGroup]:
        """Files may be removed all the time. The smaller a group is, the less likely it loses one during its merge."""
        again = pending.without(changed.paths)
        failures = again.count_failure(changed)
        if failures > 1 and (smaller := self._halved(again, changed)):
            return smaller
        if failures > self._context.limits.max_replans:
            self._too_few = f"its files change too often: {changed}"
            return []
        return [again]

    def _halved(self, pending: PendingGroup, error: Exception) -> list[PendingGroup]:
        """Returns no groups if it can't be halved any more."""
        smaller = halves(pending.files) or ()
        if smaller:
            log.warning("group is merged in halves", table=self.spec.name, files=len(pending.files),
                        error=str(error))  # fmt: skip
        return [PendingGroup(half, _MIN_FILES) for half in smaller if len(half) >= _MIN_FILES]

    async def _without_bad(self, pending: PendingGroup, error: Exception) -> list[PendingGroup]:
        """Leaves bad files out. If none is bad by itself, halves the group, or gives it up."""
        bad = await self._inspected(pending)
        if isinstance(error, BadInput) and error.path not in {file.path for file in bad}:
            bad.append(UnmergeableFile(error.path, error.reason))
        if not bad:
            return self._halved(pending, error) or self._give_up(error)
        for file in bad:
            log.error("file left out of compaction", table=self.spec.name, file=file.path, reason=file.reason)
        self._totals.leave_out(bad)
        rest = pending.without(file.path for file in bad)
        rest.min_files = _MIN_FILES
        if len(rest.files) < _MIN_FILES:
            self._error = self._error or error
            return []
        return [rest]

    async def _inspected(self, pending: PendingGroup) -> list[UnmergeableFile]:
        """Returns no files if they can't be inspected: the error of the merge is reported all the same."""
        try:
            return await self._groups.inspect(pending.files)
        except (SparkError, StorageError, MergeFailed, ChildNotStarted) as error:
            log.warning("files of a group can't be inspected", table=self.spec.name, error=str(error))
            return []

    def _swap_id(self) -> str:
        """The last swap has the job's own id, by which the registry ends the claim in the same transaction."""
        if self._queue.on_last_group:
            return self.operation_id
        return f"{self.operation_id}-{next(self._numbers)}"

    def _give_up(self, error: Exception) -> list[PendingGroup]:
        log.error("group can't be compacted", table=self.spec.name, error=str(error))
        self._error = self._error or error
        return []

    def _on_swap(self, swap: Swap) -> None:
        self._totals.add(swap)
        self.bytes_done += sum(file.file_size for file in swap.old)

    def _stopped(self) -> JobOutcome:
        """A job that has swapped a group is done."""
        return self._totals.outcome("done" if self._totals.groups else "aborted", _STOPPED)

    async def _still_there(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        """Another compactor may have finished between plan and claim: its work is not done again."""
        paths = [file.file_path for file in files]
        live = set(await self._context.store.get_files(self.spec.table.id, paths))
        return [file for file in files if file in live]

    async def _recover(self, pending: PendingGroup, error: Exception) -> None:
        limits = self._context.limits
        count = pending.count_failure(error)
        if count >= limits.attempts:
            raise error
        log.warning("group is merged again", table=self.spec.name, attempt=count + 1, error=str(error))
        clock = self._context.clock
        wait_s = Backoff(initial_s=limits.retry_wait_s, max_s=_LONGEST_RETRY_S).wait_s(count, clock)
        await self.cancellation.run(clock.sleep(wait_s), ())

    def _log(self, outcome: JobOutcome) -> None:
        log.info(
            "compaction " + outcome.status,
            table=self.spec.name,
            partition=self.spec.partition_path,
            files_in=outcome.input_files,
            files_out=outcome.output_files,
            bytes_in=outcome.input_bytes,
            bytes_out=outcome.output_bytes,
            rows=outcome.rows,
            strategy=outcome.strategy,
            seconds=round(self._context.clock.monotonic() - self.began, 3),
            reason=outcome.reason,
            operation_id=self.operation_id,
        )
