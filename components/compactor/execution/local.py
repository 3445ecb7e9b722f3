"""An executor without Spark, for tests and small tools: the merge in a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from components.compactor.execution.cancellation import settle
from components.compactor.merge import BadFile, MergeResult, MergeTask, inspect
from components.compactor.spark.executor_protocol import OutOfMemory


class LocalExecutor:
    def __init__(self, merge: Callable[[MergeTask], MergeResult]) -> None:
        self._merge = merge

    async def merge(self, task: MergeTask) -> MergeResult:
        """Cancelled, it ends when the thread does: a thread can't be stopped, and may still write."""
        work = asyncio.ensure_future(asyncio.to_thread(self._merge, task))
        try:
            return await asyncio.shield(work)
        except MemoryError as error:
            raise OutOfMemory(f"{task.table}: {error}") from error
        except asyncio.CancelledError:
            await settle(work)
            if not work.cancelled():
                work.exception()  # seen
            raise

    async def inspect(self, task: MergeTask) -> list[BadFile]:
        return await asyncio.to_thread(inspect, task)

    async def health(self) -> None:
        """Always well."""

    async def close(self) -> None:
        """Nothing to close."""
