"""One group: upload intents for its outputs, the merge, the check of its result, the swap. All of it, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from astha.tasks import to_completion
from components.compactor.execution.cancellation import Cancellation, InputsChanged, JobStopped
from components.compactor.execution.job_context import JobContext, Step
from components.compactor.execution.output_names import OutputNames
from components.compactor.execution.swap import ResultMismatch, Swap, SwapUncertain, check_result, swap_files
from components.compactor.merge import MergeFailed, MergeInput, MergeResult, MergeTask, UnmergeableFile
from components.compactor.planning.compaction_spec import CompactionSpec
from components.compactor.planning.partition_deletes import NO_DELETES, PartitionDeletes, read_partition_deletes
from components.compactor.spark.executor_protocol import SparkError
from components.lib.lake.registration.upload_intents import remove_uploads
from components.lib.lake.storage.objects import ObjectMissing, StorageRefused
from registry.errors import RegistryError
from registry.models import TableFile

_SETTLED = (
    asyncio.CancelledError,
    InputsChanged,
    JobStopped,
    MergeFailed,
    ObjectMissing,
    RegistryError,
    ResultMismatch,
    StorageRefused,
)
"""After these nothing writes any more, unless their cause says otherwise."""


class GroupRunner:
    """Merges groups of one job, one after the other or in parallel."""

    def __init__(
        self,
        spec: CompactionSpec,
        context: JobContext,
        names: OutputNames,
        cancellation: Cancellation,
        on_swap: Callable[[Swap], None],
    ) -> None:
        self._spec = spec
        self._context = context
        self._names = names
        self._cancellation = cancellation
        self._on_swap = on_swap

    async def run(self, files: Sequence[TableFile], swap_id: Callable[[], str]) -> None:
        """``swap_id`` is called when the swap is due.

        After `InputsChanged`, `JobStopped`, `ResultMismatch` and errors of the executor the inputs are as they were;
        after a cancellation too, unless ``on_swap`` was called. After `SwapUncertain` it is not known.
        """
        on_step, inputs = self._context.on_step, [file.file_path for file in files]
        deletes = await self._deletes()
        outputs = self._names.make(self._spec, files)
        task = self._task(files, outputs, deletes)
        try:
            await on_step(Step.INTENTS)
            await self._names.announce(outputs)
            await on_step(Step.MERGE)
            result = await self._cancellation.run(self._context.executor.merge(task), inputs)
            await on_step(Step.COMPARE)
            check_result(task, result)
            await on_step(Step.SWAP)
            self._cancellation.check(inputs)
        except BaseException as error:
            await to_completion(self._withdraw(outputs, error))
            raise
        await to_completion(self._swap(files, result, swap_id(), outputs, deletes))

    async def inspect(self, files: Sequence[TableFile]) -> list[UnmergeableFile]:
        """Returns the files that can't be merged, each read alone. Raises `InputsChanged`, `JobStopped` and errors of
        the executor.
        """
        work = self._context.executor.inspect(self._task(files, ()))
        return await self._cancellation.run(work, [file.file_path for file in files])

    async def _deletes(self) -> PartitionDeletes:
        """Returns the delete files as they are now: engines may have added some since the plan. The swap refuses any
        that come later.
        """
        found = await read_partition_deletes(self._context.store, self._spec.table.id, self._spec.partition_path)
        if found.reason is not None:
            raise JobStopped("aborted", found.reason)
        return found

    def _task(
        self, files: Sequence[TableFile], outputs: Sequence[str], deletes: PartitionDeletes = NO_DELETES
    ) -> MergeTask:
        spec = self._spec
        versions = spec.versions_of(files)
        return MergeTask(
            operation_id=self._names.owner,
            table=spec.name,
            partition_path=spec.partition_path,
            inputs=tuple(MergeInput.of(file, spec.strategy) for file in files),
            outputs=tuple(outputs),
            versions=versions,
            strategy=spec.strategy,
            strategy_reason=spec.strategy_reason,
            target_bytes=spec.outputs_of(files)[1],
            copy_above_bytes=spec.policy.copy_above_bytes,
            memory_bytes=spec.memory_bytes,
            retired_ids=spec.retired_ids(versions),
            limit_s=self._context.limits.merge_limit_s(sum(file.file_size for file in files)),
            lake=spec.lake,
            deletes=deletes.inputs({file.file_path for file in files}),
        )

    async def _swap(
        self,
        files: Sequence[TableFile],
        result: MergeResult,
        operation_id: str,
        outputs: Sequence[str],
        deletes: PartitionDeletes,
    ) -> None:
        """Must not be cancelled: only after the end of the swap it is known whether outputs may be removed."""
        context = self._context
        try:
            swap = await swap_files(
                context.store, context.clock, self._spec.table, files, result,
                operation_id=operation_id, intents_of=self._names.owner, deletes=deletes.files,
            )  # fmt: skip
        except SwapUncertain:
            self._names.forget(outputs)
            raise
        except BaseException as error:
            await self._withdraw(outputs, error)
            raise
        self._on_swap(swap)
        await self._remove_unused(outputs, swap.new)

    async def _withdraw(self, outputs: Sequence[str], error: BaseException) -> None:
        may_still_be_written = () if _settled(error) else outputs
        self._names.forget(outputs)
        await remove_uploads(self._context.store, self._context.objects, outputs, may_still_be_written)

    async def _remove_unused(self, outputs: Sequence[str], new: Sequence[TableFile]) -> None:
        """An attempt that failed inside the executor may have written a name that the result does not use."""
        self._names.forget(outputs)
        used = {file.file_path for file in new}
        await remove_uploads(self._context.store, self._context.objects, [uri for uri in outputs if uri not in used])


def _settled(error: BaseException) -> bool:
    """Whether nothing writes any more, so that outputs can be removed for good."""
    if isinstance(error, SparkError):
        return error.settled
    cause = error.__cause__
    return isinstance(error, _SETTLED) and not (isinstance(cause, SparkError) and not cause.settled)
