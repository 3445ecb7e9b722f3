"""Garbage collection without long pauses.

A full collection visits every live container. With Spark, PyIceberg and SQLAlchemy loaded and some thousand rows in
memory that takes 100 ms, in which the event loop delivers nothing. Here the objects that survive a full collection are
frozen, so that the next one visits only newer objects. Cyclic garbage among frozen objects is collected once per hour,
when everything is visited.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

_UNFREEZE_EVERY_S = 3_600.0


class FreezingCollector:
    """Tunes the process's collector while it is entered. One at a time."""

    def __init__(self, unfreeze_every_s: float = _UNFREEZE_EVERY_S, clock: Callable[[], float] = time.monotonic):
        self._every_s = unfreeze_every_s
        self._clock = clock
        self._next = 0.0

    def __enter__(self) -> Self:
        self._next = self._clock() + self._every_s
        gc.callbacks.append(self._on_collection)
        gc.collect()
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
