"""Garbage collection without long pauses.

A full collection visits every live container. With Spark, PyIceberg and SQLAlchemy loaded and some thousand rows in
memory that takes 100 ms, in which the event loop delivers nothing. Here the objects of the start and those that survive
a full collection are frozen, so that the next one visits only newer objects. Cyclic garbage among frozen objects is
collected once per hour, when everything is visited.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

_UNFREEZE_EVERY_S = 3_600.0


@contextmanager
def without_collections() -> Iterator[None]:
    """For the start of a process, until a `FreezingCollector` is entered or the block ends: imports make hundreds of
    thousands of objects that stay, and each collection would visit all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class FreezingCollector:
    """Tunes the process's collector while it is entered. One at a time."""

    def __init__(self, unfreeze_every_s: float = _UNFREEZE_EVERY_S, clock: Callable[[], float] = time.monotonic):
        self._every_s = unfreeze_every_s
        self._clock = clock
        self._next = 0.0

    def __enter__(self) -> Self:
        self._next = self._clock() + self._every_s
        gc.callbacks.append(self._on_collection)
        gc.freeze()  # hardly any garbage is among it, and a collection would visit everything first
        gc.enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def _on_collection(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            gc.unfreeze()
