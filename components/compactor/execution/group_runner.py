"""One group's way: names under intents, a merge of them, the comparison, the swap. All of it, or nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from astha.clock import LoopClock
from astha.errors import AsthaError
from components.compactor.execution.cancellation import Brake, Ended, Touched, to_the_end
from components.compactor.execution.compaction_spec import Assignment
from components.compactor.execution.failpoints import Reached, Step, go_on
from components.compactor.execution.job_settings import JobLimits
from components.compactor.execution.output_names import Names
from components.compactor.execution.result_check import Mismatch, compare
from components.compactor.merge import BadFile, MergeFailed, MergeInput, MergeResult, MergeTask
from components.compactor.spark.executor_protocol import Executor, SparkError
from components.lib.lake.registration.upload_intents import remove_uploads
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageRefused
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, NotFound, RegistryError, Unavailable
from registry.models import TableFile

_SWAP_ATTEMPTS = 8
_SWAP_WAIT_S = 0.25  # doubles, up to
_SWAP_MOST_S = 8.0

_SETTLED = (
    asyncio.CancelledError, Ended, Touched, Mismatch, MergeFailed, StorageRefused, ObjectMissing, RegistryError,
)  # fmt: skip
"""After these nobody writes any more, unless their cause says otherwise."""


class Undecided(AsthaError):
    """The registry does not answer, and the swap may have happened or not. Nothing is removed: if it has, the files
    are the table's; if not, their intents go stale and the cleaner takes them.
    """


class Swapped(msgspec.Struct, frozen=True):
    old: Sequence[TableFile]
    new: Sequence[TableFile]
    result: MergeResult


class GroupRun:
    """Merges groups of one assignment, one after the other or side by side."""

    def __init__(
        self,
        store: MetadataStore,
        executor: Executor,
        objects: Objects,
        clock: LoopClock,
        names: Names,
        brake: Brake,
        swapped: Callable[[Swapped], None],
        reached: Reached = go_on,
        limits: JobLimits | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._objects = objects
        self._clock = clock
        self._names = names
        self._brake = brake
        self._swapped = swapped
        self._reached = reached
        self._limits = limits or JobLimits()

    async def run(self, assignment: Assignment, files: Sequence[TableFile], name: Callable[[], str]) -> None:
        """Touched, Ended, what the executor raises, Mismatch: the inputs are as they were. Undecided: nobody knows.
        Cancelled: they are, unless ``swapped`` was called before. ``name`` is asked for the swap's id when it is due.
        """
        inputs = [file.file_path for file in files]
        outputs = self._names.make(assignment, files)
        task = self._task(assignment, files, outputs)
        try:
            await self._reached(Step.INTENTS)
            await self._names.announce(outputs)
            await self._reached(Step.MERGE)
            result = await self._brake.drive(self._executor.merge(task), inputs)
            await self._reached(Step.COMPARE)
            compare(task, result)
            await self._reached(Step.SWAP)
            self._brake.check(inputs)
        except BaseException as error:
            await to_the_end(self._withdraw(outputs, error))
            raise
        await to_the_end(self._commit(assignment, files, result, name(), outputs))

    async def inspect(self, assignment: Assignment, files: Sequence[TableFile]) -> list[BadFile]:
        """Those that can't be merged, each looked at alone. Touched, Ended, what the executor raises."""
        task = self._task(assignment, files, ())
        return await self._brake.drive(self._executor.inspect(task), [file.file_path for file in files])

    def _task(self, assignment: Assignment, files: Sequence[TableFile], outputs: Sequence[str]) -> MergeTask:
        versions = assignment.versions_of(files)
        return MergeTask(
            operation_id=self._names.owner,
            table=assignment.name,
            partition_path=assignment.partition_path,
            inputs=tuple(map(MergeInput.of, files)),
            outputs=tuple(outputs),
            versions=versions,
            strategy=assignment.strategy,
            strategy_why=assignment.strategy_why,
            target_bytes=assignment.outputs_of(files)[1],
            copy_above_bytes=assignment.policy.copy_above_bytes,
            memory_bytes=assignment.memory_bytes,
            retired_ids=assignment.retired_ids(versions),
            limit_s=self._limits.merge_limit_s(sum(file.file_size for file in files)),
            lake=assignment.lake,
        )

    async def _commit(
        self,
        assignment: Assignment,
        files: Sequence[TableFile],
        result: MergeResult,
        operation_id: str,
        outputs: Sequence[str],
    ) -> None:
        """Not to be cancelled: whether outputs may be removed is known only to who has seen the end of the swap."""
        try:
            new = await self._swap(assignment, files, result, operation_id)
        except Undecided:
            self._names.forget(outputs)
            raise
        except BaseException as error:
            await self._withdraw(outputs, error)
            raise
        self._swapped(Swapped(files, new, result))
        await self._give_back(outputs, new)

    async def _swap(
        self, assignment: Assignment, files: Sequence[TableFile], result: MergeResult, operation_id: str
    ) -> list[TableFile]:
        """Repeated while nobody answers: a repetition of what has happened is a conflict with ourselves."""
        paths = [draft.file_path for draft in result.files]
        wait_s = _SWAP_WAIT_S
        lost: Unavailable | None = None
        for _ in range(_SWAP_ATTEMPTS):
            try:
                if lost is not None and (found := await self._store.get_files(assignment.table.id, paths)):
                    return found
                return await self._store.swap_files(
                    assignment.table.id, files, result.files, operation_id=operation_id, intents_of=self._names.owner
                )
            except Unavailable as error:
                lost = error
                await self._clock.sleep(wait_s)
                wait_s = min(wait_s * 2, _SWAP_MOST_S)
            except NotFound as error:
                raise Ended("aborted", f"the table was dropped meanwhile: {error}") from error
            except (Conflict, AlreadyExists) as error:
                if lost is not None and (found := await self._store.get_files(assignment.table.id, paths)):
                    return found
                touched = {file.file_path for file in files}.intersection(getattr(error, "names", ()))
                if touched:
                    raise Touched(touched) from error
                raise Ended("aborted", f"the swap was refused: {error}") from error
        raise Undecided(f"{assignment.name}: whether the swap {operation_id} happened is not known: {lost}") from lost

    async def _withdraw(self, outputs: Sequence[str], error: BaseException) -> None:
        doubtful = () if _settled(error) else outputs
        self._names.forget(outputs)
        await remove_uploads(self._store, self._objects, outputs, doubtful)

    async def _give_back(self, outputs: Sequence[str], new: Sequence[TableFile]) -> None:
        """Names that were not needed. An attempt that failed inside the executor may have written one."""
        self._names.forget(outputs)
        used = {file.file_path for file in new}
        await remove_uploads(self._store, self._objects, [uri for uri in outputs if uri not in used])


def _settled(error: BaseException) -> bool:
    """Whether all that was going to be written is written, so that it can be removed for good."""
    if isinstance(error, SparkError):
        return error.settled
    cause = error.__cause__
    return isinstance(error, _SETTLED) and not (isinstance(cause, SparkError) and not cause.settled)
