"""Full garbage collections that hold nobody up.

Python's collector looks at every container that is alive. With Spark, PyIceberg and SQLAlchemy loaded and some thousand
rows at hand that takes 100 ms, in which the event loop delivers nothing. Here what survives a full collection is set
aside, so that the next one looks only at what has come since. What dies later in a cycle stays until, once in a long
while, everything is looked at again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

_EVERYTHING_EVERY_S = 3_600.0


class SparingCollector:
    """The process's collector, while it is entered. One at a time."""

    def __init__(self, everything_every_s: float = _EVERYTHING_EVERY_S, clock: Callable[[], float] = time.monotonic):
        self._every_s = everything_every_s
        self._clock = clock
        self._next = 0.0

    def __enter__(self) -> Self:
        self._next = self._clock() + self._every_s
        gc.callbacks.append(self._around)
        gc.collect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._around)
        gc.unfreeze()

    def _around(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            gc.unfreeze()
