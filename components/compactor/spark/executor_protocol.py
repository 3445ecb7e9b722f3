"""The contract between a job, which has groups to merge, and what merges them."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from components.compactor.merge import MergeFailed, MergeResult, MergeTask, UnmergeableFile
from components.lib.spark.errors import (
    JobFailed,
    OutOfMemory,
    SessionLost,
    SessionProblem,
    SparkError,
    StillWriting,
    TaskTimeout,
    WorkerCrashed,
)
from components.lib.spark.process_memory import ProcessMemory

__all__ = [
    "Executor",
    "JobFailed",
    "MergeFailed",
    "OutOfMemory",
    "SessionLost",
    "SessionProblem",
    "SparkError",
    "ReportsMemory",
    "ReportsTasks",
    "StillWriting",
    "TaskProgress",
    "TaskTimeout",
    "WorkerCrashed",
]


class TaskProgress(msgspec.Struct, frozen=True):
    operation_id: str
    table: str
    partition_path: str
    state: Literal["waiting", "running"]  # for a free core, or in a worker
    attempts: int
    worker: str | None
    seconds: float


class Executor(Protocol):
    """Safe for concurrent use in one event loop."""

    async def merge(self, task: MergeTask) -> MergeResult:
        """At most one attempt writes the outputs at a time, and none does once this has returned.

        Raises MergeFailed and StorageError as the merge does, and `SparkError`, whose ``settled`` says whether the task
        may still write. A cancelled call ends the task first: CancelledError means that it writes nothing any more,
        StillWriting that it could not be ended in time. A worker that exceeds the task's ``limit_s`` is ended too:
        TaskTimeout.
        """
        ...

    async def inspect(self, task: MergeTask) -> list[UnmergeableFile]:
        """Returns the inputs that can't be merged, each read alone. Writes nothing; raises what `merge` does."""
        ...

    async def health(self) -> None:
        """Raises if a merge would fail now. Does not start a session that was not needed yet."""
        ...

    async def close(self) -> None:
        """Ends running merges and the session. Nothing can be merged afterwards."""
        ...


@runtime_checkable
class ReportsMemory(Protocol):
    """An executor that knows the memory of its processes."""

    async def memory(self) -> ProcessMemory: ...


@runtime_checkable
class ReportsTasks(Protocol):
    """An executor that knows where its tasks are."""

    @property
    def ready(self) -> bool:
        """Whether there is a session: the first merge starts it, which takes a while."""
        ...

    def progress(self) -> list[TaskProgress]: ...
