"""The jobs in hand: one a partition; who touches one of their inputs is felt at once."""

from __future__ import annotations

from collections.abc import Iterator

from components.compactor.execution.job import Job, Workshop
from components.compactor.execution.outcome import Outcome
from components.compactor.planning.compaction_spec import Assignment


class Crew:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._jobs: set[Job] = set()
        self._inputs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs))

    async def run(self, assignment: Assignment) -> Outcome:
        """As `Job.run`."""
        job = Job(assignment, self._workshop)
        paths = [file.file_path for file in assignment.files]
        self._jobs.add(job)
        self._inputs.update(dict.fromkeys(paths, job))
        try:
            return await job.run()
        finally:
            self._jobs.discard(job)
            for path in paths:
                if self._inputs.get(path) is job:
                    del self._inputs[path]

    def touch(self, path: str) -> None:
        """A file is gone: whoever merges it need not go on. The news of our own swaps comes here too, too late."""
        job = self._inputs.get(path)
        if job is not None:
            job.brake.touch(path)

    def end(self, table_id: int, reason: str) -> None:
        """Whatever is done with this table."""
        for job in self._jobs:
            if job.assignment.table.id == table_id:
                job.brake.end("aborted", reason)
