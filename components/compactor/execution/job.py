"""A job: the groups of one partition, a few at a time, under one claim.

What goes wrong and what is done about it:

    an input was removed or changed     the group again without it, if enough are left; else aborted
    out of memory                       the group in halves, down to two files; then as below
    a file can't be read, the worker    each file is looked at alone: bad ones are left out with a reason, the others
    crashes, or takes too long          merged; if none is bad, the group in halves, down to two files; then failed
    the JVM died                        the group again, in a new session, a few times; then failed
    storage does not answer             the group again, a few times; then failed
    the merge can't be done, or its     the other groups go on; failed if none is left; never swapped
    result is not its input
    cancelled, stopped, table dropped   ended; nothing stays
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from uuid import uuid4

import msgspec
import structlog

from astha.clock import LoopClock
from components.compactor.execution.cancellation import Brake, Ended, Touched, settle, to_the_end
from components.compactor.execution.compaction_spec import Assignment, halves
from components.compactor.execution.failpoints import Reached, Step, go_on
from components.compactor.execution.group_queue import Piece, Worklist
from components.compactor.execution.group_runner import GroupRun, Swapped, Undecided
from components.compactor.execution.job_settings import JobLimits
from components.compactor.execution.lease import Claim
from components.compactor.execution.outcome import Outcome, Tally
from components.compactor.execution.output_names import Names
from components.compactor.execution.result_check import Mismatch
from components.compactor.merge import BadFile, BadInput, MergeFailed
from components.compactor.spark.executor_protocol import (
    Executor,
    JobFailed,
    MergeCrashed,
    MergeTimeout,
    OutOfMemory,
    SessionLost,
    SparkError,
)
from components.lib.lake.isolation import ChildNotStarted
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError, StorageUnavailable
from registry.contract import MetadataStore
from registry.errors import Conflict, RegistryError
from registry.models import TableFile

log = structlog.get_logger(__name__)

_STOPPED = "the compactor was stopped"
_SMALLEST = 2  # files: one alone is merged with nothing


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
        self._worklist = Worklist(())
        self._numbers = count(1)
        self._error: Exception | None = None  # of files that can't be merged
        self._left_out: str | None = None
        self._due: dict[object, float] = {}  # of groups in hand: when each should be over, by the monotonic clock

    @property
    def stuck(self) -> bool:
        """Whether a group should be over, by itself or by its deadline."""
        now = self._shop.clock.monotonic()
        return any(now > due for due in self._due.values())

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
            await self._merge_groups()
        except Ended as ended:
            partly = tally.groups and ended.status == "aborted"
            return tally.outcome("done" if partly else ended.status, ended.reason)
        except (Undecided, SparkError, StorageError, RegistryError, SchemaProblem) as error:
            return tally.outcome("failed", str(error), error)
        except Exception as error:
            log.exception("a compaction failed for an unknown reason", table=self.assignment.name)
            return tally.outcome("failed", f"{type(error).__name__}: {error}", error)
        problem = tally.problem or (self._left_out if self._error is None else str(self._error))
        if tally.groups:
            return tally.outcome("done", problem)
        if self._error is not None:
            return tally.outcome("failed", problem, self._error)
        return tally.outcome("aborted", problem or "nothing was left to merge")

    async def _merge_groups(self) -> None:
        """All groups that can be merged."""
        pieces = [
            Piece(await self._still_there(group), min(self.assignment.least, len(group)))
            for group in self.assignment.groups
        ]
        self._worklist = Worklist(pieces)
        await self._worklist.work_off(self._merge_piece, self._shop.limits.groups_at_once)

    async def _merge_piece(self, piece: Piece) -> Sequence[Piece]:
        """What is to be merged instead. An error of these files alone is kept, and does not keep the others."""
        files = piece.files
        if len(files) < max(_SMALLEST, piece.least):
            self._left_out = f"inputs were removed or changed meanwhile, the {len(files)} left are not worth a merge"
            return []
        try:
            await self._merge_group(files)
        except Touched as touched:
            if self._count(piece, touched) > self._shop.limits.plans_again:
                raise Ended("aborted", f"its files change too often: {touched}") from touched
            return [piece.without(touched.paths)]
        except OutOfMemory as error:
            return self._halved(piece, error) or await self._without_bad(piece, error)
        except (BadInput, ObjectMissing, MergeCrashed, MergeTimeout) as error:
            return await self._without_bad(piece, error)
        except (MergeFailed, Mismatch) as error:
            return self._keep(error)
        except (SessionLost, JobFailed, StorageUnavailable) as error:
            await self._recover(piece, error)
            return [piece]
        return []

    async def _merge_group(self, files: Sequence[TableFile]) -> None:
        began = self._shop.clock.monotonic()
        key = object()
        self._due[key] = began + self._shop.limits.stuck_after_s(sum(file.file_size for file in files))
        try:
            await self._group_run().run(self.assignment, files, self._name_swap)
        finally:
            del self._due[key]
        self._tally.spent({"all": self._shop.clock.monotonic() - began})

    def _group_run(self) -> GroupRun:
        shop = self._shop
        return GroupRun(
            shop.store, shop.executor, shop.objects, shop.clock, self._names, self.brake, self._swapped, shop.reached,
            shop.limits,
        )  # fmt: skip

    def _halved(self, piece: Piece, error: Exception) -> list[Piece]:
        """Nothing for what can't be halved any more."""
        smaller = halves(piece.files) or ()
        if smaller:
            log.warning("a group is merged in halves", table=self.assignment.name, files=len(piece.files),
                        error=str(error))  # fmt: skip
        return [Piece(half, _SMALLEST) for half in smaller if len(half) >= _SMALLEST]

    async def _without_bad(self, piece: Piece, error: Exception) -> list[Piece]:
        """The bad files are left out; if none is bad by itself, the group is halved, or given up."""
        bad = await self._inspected(piece)
        if isinstance(error, BadInput) and error.path not in {file.path for file in bad}:
            bad.append(BadFile(error.path, error.reason))
        if not bad:
            return self._halved(piece, error) or self._keep(error)
        for file in bad:
            log.error(
                "a file is left out of compaction", table=self.assignment.name, file=file.path, reason=file.reason
            )
        self._tally.leave_out(bad)
        rest = piece.without(file.path for file in bad)
        rest.least = _SMALLEST
        if len(rest.files) < _SMALLEST:
            self._error = self._error or error
            return []
        return [rest]

    async def _inspected(self, piece: Piece) -> list[BadFile]:
        """None of them, if they can't be looked at: what they did to their merge is told all the same."""
        try:
            return await self._group_run().inspect(self.assignment, piece.files)
        except (SparkError, StorageError, MergeFailed, ChildNotStarted) as error:
            log.warning("a group's files can't be looked at", table=self.assignment.name, error=str(error))
            return []

    def _name_swap(self) -> str:
        """The last swap carries the job's own id, with which the registry ends the claim in the same transaction."""
        if self._worklist.on_the_last:
            return self.operation_id
        return f"{self.operation_id}-{next(self._numbers)}"

    def _keep(self, error: Exception) -> list[Piece]:
        log.error("files can't be compacted", table=self.assignment.name, error=str(error))
        self._error = self._error or error
        return []

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

    async def _recover(self, piece: Piece, error: Exception) -> None:
        limits = self._shop.limits
        count = self._count(piece, error)
        if count >= limits.attempts:
            raise error
        log.warning("a group is merged again", table=self.assignment.name, attempt=count + 1, error=str(error))
        await self.brake.drive(self._shop.clock.sleep(limits.retry_wait_s * 2 ** (count - 1)), ())

    def _count(self, piece: Piece, error: Exception) -> int:
        piece.failures[type(error)] += 1
        return piece.failures[type(error)]

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
