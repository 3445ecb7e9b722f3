"""A job: the groups of one partition, one after the other, under one claim.

What goes wrong and what is done about it:

    an input was removed or changed     the group again without it, if enough are left; else aborted
    out of memory                       the group in halves, down to two files; then failed
    the JVM died                        the group again, in a new session, a few times; then failed
    storage does not answer             the group again, a few times; then failed
    the merge can't be done, or its     failed; never swapped, not tried again until the partition changes
    result is not its input
    cancelled, stopped, table dropped   ended; nothing stays
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from uuid import uuid4

import msgspec
import structlog

from astha.clock import LoopClock
from components.compactor.merge import MergeFailed
from components.compactor.spark.executor import Executor, JobFailed, OutOfMemory, SessionLost, SparkError
from components.compactor.work.assignment import Assignment, halves
from components.compactor.work.brake import Brake, Ended, Touched, settle, to_the_end
from components.compactor.work.claim import Claim
from components.compactor.work.comparison import Mismatch
from components.compactor.work.group import GroupRun, Swapped, Undecided
from components.compactor.work.names import Names
from components.compactor.work.outcome import Outcome, Tally
from components.compactor.work.steps import Reached, Step, go_on
from components.lake.objects import Objects, StorageError, StorageUnavailable
from components.lake.schema import SchemaProblem
from registry.contract import MetadataStore
from registry.errors import Conflict, RegistryError
from registry.models import TableFile

log = structlog.get_logger(__name__)

_STOPPED = "the compactor was stopped"
_SMALLEST = 2  # files: one alone is merged with nothing


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_s: float = 1.0
    stale_after_s: float = 30.0  # without a sign of life, before others take over
    attempts: int = 3  # of a group, when the session dies or storage does not answer
    plans_again: int = 5  # when inputs go away meanwhile
    retry_wait_s: float = 1.0  # doubles


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """What all jobs of a compactor share."""

    store: MetadataStore
    executor: Executor
    objects: Objects
    clock: LoopClock
    owner: str
    limits: JobLimits = JobLimits()
    reached: Reached = go_on


class Job:
    def __init__(self, assignment: Assignment, workshop: Workshop) -> None:
        self.assignment = assignment
        self.operation_id = f"compaction-{uuid4().hex}"
        self.brake = Brake()
        self.began = workshop.clock.monotonic()
        self.bytes_done = 0
        self._shop = workshop
        self._tally = Tally()
        self._names = Names(
            workshop.store,
            workshop.clock,
            self.operation_id,
            assignment.table.id,
        )
        self._failures: dict[type[Exception], int] = {}

    @property
    def bytes_total(self) -> int:
        return self.assignment.input_bytes

    @property
    def groups_done(self) -> int:
        return self._tally.groups

    async def run(self) -> Outcome:
        """Never raises but when it is cancelled, and then only when nothing of it is left."""
        shop, limits = self._shop, self._shop.limits
        try:
            await shop.reached(Step.CLAIM)
            claim = await self._claim()
        except Conflict as error:
            return Outcome(status="declined", reason=str(error), error=error)
        except RegistryError as error:
            return Outcome(status="failed", reason=str(error), error=error)
        beating = asyncio.create_task(claim.beat(limits.heartbeat_s, self._names, self.brake))
        try:
            outcome = await self._work()
        except asyncio.CancelledError:
            await to_the_end(claim.finish(self._stopped()))
            raise
        finally:
            beating.cancel()
        await shop.reached(Step.FINISH)
        await to_the_end(claim.finish(outcome))
        self._log(outcome)
        return outcome

    async def _claim(self) -> Claim:
        shop = self._shop
        stale_s = shop.limits.stale_after_s
        taking = asyncio.ensure_future(
            Claim.take(shop.store, shop.clock, self.assignment, self.operation_id, shop.owner, stale_s)
        )
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await settle(taking)
            if not taking.cancelled() and taking.exception() is None:
                await to_the_end(taking.result().finish(self._stopped()))
            raise

    async def _work(self) -> Outcome:
        """Every end that is not a cancellation is an outcome."""
        tally = self._tally
        try:
            problem = await self._merge_groups()
        except Ended as ended:
            partly = tally.groups and ended.status == "aborted"
            return tally.outcome("done" if partly else ended.status, ended.reason)
        except Undecided as error:
            return tally.outcome("failed", str(error), error)
        except (SparkError, StorageError, RegistryError) as error:
            return tally.outcome("failed", str(error), error)
        except (MergeFailed, Mismatch, SchemaProblem) as error:
            log.error("files can't be compacted", table=self.assignment.name, error=str(error))
            return tally.outcome("failed", str(error), error)
        except Exception as error:
            log.exception("a compaction failed for an unknown reason", table=self.assignment.name)
            return tally.outcome("failed", f"{type(error).__name__}: {error}", error)
        if tally.groups:
            return tally.outcome("done", problem)
        return tally.outcome("aborted", problem or "nothing was left to merge")

    async def _merge_groups(self) -> str | None:
        """All groups that can be merged; what was left out, if anything was."""
        pending: deque[tuple[Sequence[TableFile], int]] = deque()
        for group in self.assignment.groups:
            pending.append((await self._still_there(group), min(self.assignment.least, len(group))))
        left_out: str | None = None
        while pending:
            files, least = pending.popleft()
            if len(files) < max(_SMALLEST, least):
                left_out = f"inputs were removed or changed meanwhile, the {len(files)} left are not worth a merge"
                continue
            try:
                await self._merge_group(files, last=not pending)
            except Touched as touched:
                if self._count(Touched) > self._shop.limits.plans_again:
                    raise Ended("aborted", f"its files change too often: {touched}") from touched
                pending.appendleft(([file for file in files if file.file_path not in touched.paths], least))
            except OutOfMemory as error:
                smaller = halves(files)
                if smaller is None:
                    raise
                log.warning("out of memory: halves", table=self.assignment.name, files=len(files), error=str(error))
                pending.extendleft((half, _SMALLEST) for half in reversed(smaller) if len(half) >= _SMALLEST)
            except (SessionLost, JobFailed, StorageUnavailable) as error:
                await self._recover(error)
                pending.appendleft((files, least))
        return left_out

    async def _merge_group(self, files: Sequence[TableFile], *, last: bool) -> None:
        """The last swap carries the job's own id, with which the registry ends the claim in the same transaction."""
        shop, number = self._shop, self._tally.groups + 1
        operation_id = self.operation_id if last else f"{self.operation_id}-{number}"
        group = GroupRun(
            shop.store, shop.executor, shop.objects, shop.clock, self._names, self.brake, self._swapped, shop.reached
        )
        began = shop.clock.monotonic()
        await group.run(self.assignment, files, operation_id)
        self._tally.spent({"all": shop.clock.monotonic() - began})

    def _swapped(self, swapped: Swapped) -> None:
        self._tally.add(swapped)
        self.bytes_done += sum(file.file_size for file in swapped.old)

    def _stopped(self) -> Outcome:
        """What was swapped before the stop is done."""
        return self._tally.outcome("done" if self._tally.groups else "aborted", _STOPPED)

    async def _still_there(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        """Between plan and claim another compactor may have finished: its work is not done again."""
        paths = [file.file_path for file in files]
        live = set(await self._shop.store.get_files(self.assignment.table.id, paths))
        return [file for file in files if file in live]

    async def _recover(self, error: Exception) -> None:
        limits = self._shop.limits
        count = self._count(type(error))
        if count >= limits.attempts:
            raise error
        log.warning("a group is merged again", table=self.assignment.name, attempt=count + 1, error=str(error))
        await self.brake.drive(self._shop.clock.sleep(limits.retry_wait_s * 2 ** (count - 1)), ())

    def _count(self, kind: type[Exception]) -> int:
        self._failures[kind] = self._failures.get(kind, 0) + 1
        return self._failures[kind]

    def _log(self, outcome: Outcome) -> None:
        log.info(
            "compaction " + outcome.status,
            table=self.assignment.name,
            partition=self.assignment.partition_path,
            files_in=outcome.input_files,
            files_out=outcome.output_files,
            bytes_in=outcome.input_bytes,
            bytes_out=outcome.output_bytes,
            rows=outcome.rows,
            strategy=outcome.strategy,
            seconds=round(self._shop.clock.monotonic() - self.began, 3),
            reason=outcome.reason,
            operation_id=self.operation_id,
        )
