"""The jobs in hand: one a partition, each a task; who touches one of their inputs is felt at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import structlog

from components.compactor.work.assignment import Assignment
from components.compactor.work.job import Job, Workshop
from components.compactor.work.outcome import Outcome

log = structlog.get_logger(__name__)

Key: TypeAlias = tuple[int, str]
"""A table's id and a partition's path."""

Ended: TypeAlias = Callable[[Job, Outcome], None]


class Crew:
    def __init__(self, workshop: Workshop, ended: Ended) -> None:
        """``ended`` is called with every outcome, in the loop; not for jobs that a stop has cancelled."""
        self._workshop = workshop
        self._ended = ended
        self._jobs: dict[Key, tuple[Job, asyncio.Task[None]]] = {}
        self._inputs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter([job for job, _ in self._jobs.values()])

    def begin(self, assignment: Assignment) -> Job:
        key = (assignment.table.id, assignment.partition_path)
        if key in self._jobs:
            raise ValueError(f"{assignment.name} {assignment.partition_path!r} is in hand already")
        job = Job(assignment, self._workshop)
        for file in assignment.files:
            self._inputs[file.file_path] = job
        task = asyncio.create_task(self._run(job), name=f"compaction of {assignment.name} {assignment.partition_path}")
        self._jobs[key] = (job, task)
        task.add_done_callback(lambda done: self._leave(key, job, done))
        return job

    def touch(self, path: str) -> None:
        """A file is gone: whoever merges it need not go on. Our own swaps come here too, when they are over."""
        job = self._inputs.get(path)
        if job is not None:
            job.brake.touch(path)

    def end(self, key: Key, reason: str) -> None:
        found = self._jobs.get(key)
        if found is not None:
            found[0].brake.end("aborted", reason)

    async def stop(self) -> None:
        """Returns when nothing of any job is left, or nothing that the cleaner does not find."""
        tasks = [task for _, task in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        self._ended(job, await job.run())

    def _leave(self, key: Key, job: Job, task: asyncio.Task[None]) -> None:
        del self._jobs[key]
        for file in job.assignment.files:
            if self._inputs.get(file.file_path) is job:
                del self._inputs[file.file_path]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a compaction ended by a fault of its own", task=task.get_name(), error=repr(error))
