"""The jobs that run, with their inputs: a change of an input is passed on to its job at once."""

from __future__ import annotations

from collections.abc import Iterator

from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import JobContext
from components.compactor.execution.outcome import JobOutcome
from components.compactor.planning.compaction_spec import CompactionSpec


class RunningJobs:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._jobs: set[CompactionJob] = set()
        self._inputs: dict[str, CompactionJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[CompactionJob]:
        return iter(list(self._jobs))

    async def run(self, spec: CompactionSpec) -> JobOutcome:
        """See `CompactionJob.run`."""
        job = CompactionJob(spec, self._context)
        paths = [file.file_path for file in spec.files]
        self._jobs.add(job)
        self._inputs.update(dict.fromkeys(paths, job))
        try:
            return await job.run()
        finally:
            self._jobs.discard(job)
            for path in paths:
                if self._inputs.get(path) is job:
                    del self._inputs[path]

    def input_changed(self, path: str) -> None:
        """A file was removed or changed. Our own swaps are reported here too, when their job has no use for it."""
        job = self._inputs.get(path)
        if job is not None:
            job.cancellation.input_changed(path)
