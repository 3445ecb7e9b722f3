"""Time spent in the phases of a merge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Seconds by phase. A nested phase does not count for the outer one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self.seconds = dict.fromkeys(("read", "sort", "encode", "write", "verify"), 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """May be nested, in one thread or in a thread that the outer phase waits for."""
        self._add_elapsed()
        self._open.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._open.pop()

    def _add_elapsed(self) -> None:
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
