"""The groups of a job that are still to be merged, a few of them side by side."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from registry.models import TableFile


class Piece:
    """A group, or what is left of one."""

    def __init__(self, files: Sequence[TableFile], least: int) -> None:
        self.files = files
        self.least = least  # files, below which it is not worth a merge
        self.failures: Counter[type[Exception]] = Counter()

    def without(self, paths: Iterable[str]) -> Piece:
        gone = set(paths)
        self.files = [file for file in self.files if file.file_path not in gone]
        return self


class Worklist:
    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pending = deque(pieces)
        self._in_hand = 0

    @property
    def on_the_last(self) -> bool:
        """Whether the piece in hand is the only one, and none waits."""
        return not self._pending and self._in_hand == 1

    async def work_off(self, merge: Callable[[Piece], Awaitable[Sequence[Piece]]], at_once: int) -> None:
        """What ``merge`` answers is to be merged next. The first error ends the others, and waits for their end."""

        async def worker() -> None:
            while self._pending:
                piece = self._pending.popleft()
                self._in_hand += 1
                try:
                    self._pending.extendleft(reversed(await merge(piece)))
                finally:
                    self._in_hand -= 1

        workers = [asyncio.create_task(worker()) for _ in range(min(at_once, len(self._pending)))]
        if not workers:
            return
        try:
            await asyncio.gather(*workers)
        except BaseException:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
