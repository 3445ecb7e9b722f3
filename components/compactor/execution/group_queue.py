"""The groups of a job that are still to be merged, a few of them in parallel."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from astha.tasks import cancel_and_wait
from registry.models import TableFile


class PendingGroup:
    """A group, or what is left of one."""

    def __init__(self, files: Sequence[TableFile], min_files: int) -> None:
        self.files = files
        self.min_files = min_files  # fewer are not worth a merge
        self.failures: Counter[type[Exception]] = Counter()

    def without(self, paths: Iterable[str]) -> PendingGroup:
        removed = set(paths)
        self.files = [file for file in self.files if file.file_path not in removed]
        return self

    def count_failure(self, error: Exception) -> int:
        """Returns how many failures of its kind there were."""
        self.failures[type(error)] += 1
        return self.failures[type(error)]


class GroupQueue:
    def __init__(self, groups: Iterable[PendingGroup]) -> None:
        self._pending = deque(groups)
        self._running = 0

    @property
    def on_last_group(self) -> bool:
        """Whether one group is being merged and none waits."""
        return not self._pending and self._running == 1

    async def run(self, merge: Callable[[PendingGroup], Awaitable[Sequence[PendingGroup]]], parallel: int) -> None:
        """Merges all. The groups that ``merge`` returns come next. The first error cancels the others."""

        async def worker() -> None:
            while self._pending:
                group = self._pending.popleft()
                self._running += 1
                try:
                    self._pending.extendleft(reversed(await merge(group)))
                finally:
                    self._running -= 1

        workers = [asyncio.create_task(worker()) for _ in range(min(parallel, len(self._pending)))]
        if not workers:
            return
        try:
            await asyncio.gather(*workers)
        except BaseException:
            await cancel_and_wait(*workers)
            raise
