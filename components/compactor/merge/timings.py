"""Where a merge's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by phase; what is inside of another phase counts for itself only."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self.seconds = dict.fromkeys(("read", "sort", "encode", "write", "verify"), 0.0)

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Nested, in one thread or in one that the outer phase waits for."""
        self._turn()
        self._open.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
