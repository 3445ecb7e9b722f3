"""Noticing a component that blocks the event loop, and naming it.

A blocked loop can't watch itself, so a thread does. It can't interrupt the component either; but it can say in the log
which one it is and where it stands, and once the loop moves again the component is broken out, so that it happens once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import structlog

from astha.lanes.lane import Lane

log = structlog.get_logger(__name__)

_BEAT_S = 0.1
_TASKS = ("worker", "health question", "start or stop")  # in which a component's own code runs


class LoopWatch:
    def __init__(self, lanes: Sequence[Lane], limit_s: float) -> None:
        self._lanes = {f"{lane.name}: {task}": lane for lane in lanes for task in _TASKS}
        self._limit_s = limit_s
        self._beat = time.monotonic()
        self._culprit: str | None = None
        self._over = threading.Event()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="loop watch", daemon=True
        )
        self._beat = time.monotonic()
        thread.start()
        try:
            while True:
                await asyncio.sleep(_BEAT_S)
                blocked = time.monotonic() - self._beat - _BEAT_S
                self._beat = time.monotonic()
                culprit, self._culprit = self._culprit, None
                if culprit is not None:
                    self._lanes[culprit].break_out(f"it blocked the event loop for {blocked:.1f} s")
        finally:
            self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        pause = min(_BEAT_S, self._limit_s / 4)
        looked = time.monotonic()
        while not self._over.wait(pause):
            looked, before = time.monotonic(), looked
            if looked - before > pause + self._limit_s / 2:
                continue  # we were held up ourselves: the whole process was, and nobody in it is to blame
            if looked - self._beat < self._limit_s + _BEAT_S or self._culprit is not None:
                continue
            task = asyncio.current_task(loop)
            name = task.get_name() if task is not None else ""
            if name in self._lanes:
                self._culprit = name
                frame = sys._current_frames().get(thread)
                stack = "".join(traceback.format_stack(frame, limit=5)) if frame else None
                log.error("a component blocks the event loop", component=self._lanes[name].name, stack=stack)
