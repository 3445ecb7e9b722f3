"""The contract between who has a group to merge and what merges it."""

from __future__ import annotations

from typing import Protocol

from components.compactor.merge import BadFile, MergeFailed, MergeResult, MergeTask
from components.lib.spark.errors import (
    JobFailed,
    MergeCrashed,
    MergeTimeout,
    OutOfMemory,
    SessionLost,
    SessionProblem,
    SparkError,
    StillWriting,
)

__all__ = [
    "Executor",
    "JobFailed",
    "MergeCrashed",
    "MergeFailed",
    "MergeTimeout",
    "OutOfMemory",
    "SessionLost",
    "SessionProblem",
    "SparkError",
    "StillWriting",
]


class Executor(Protocol):
    """Safe for concurrent use in one event loop."""

    async def merge(self, task: MergeTask) -> MergeResult:
        """Each output is written by one attempt at a time, and by none once this has returned.

        Raises MergeFailed and StorageError as the merge does, and `SparkError`: whether something of the task may
        still appear in storage is its ``settled``. Cancelled, it ends the task first: CancelledError means that
        nothing of it can appear any more, StillWriting that this could not be had in time. A worker that takes longer
        than the task's ``limit_s`` is ended likewise: MergeTimeout.
        """
        ...

    async def inspect(self, task: MergeTask) -> list[BadFile]:
        """Those of its inputs that can't be merged, each looked at alone. Writes nothing; raises what `merge` does."""
        ...

    async def health(self) -> None:
        """Raises if a merge would not work now. A session that was not needed yet is not started for this."""
        ...

    async def close(self) -> None:
        """Ends what runs, and the session. Nothing can be merged afterwards."""
        ...
