"""Noticing a component that blocks the event loop, and naming it.

A blocked loop can't watch itself, so a thread does. It can't interrupt the component either; but it can say in the log
which one it is and where it stands, and once the loop moves again the component is broken out, so that it happens once.
Calls of a component are known by their task; what a component does in tasks of its own, by where the code is.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType

import structlog

from astha.lanes.lane import Lane

log = structlog.get_logger(__name__)

_BEAT_S = 0.1
_TASKS = ("worker", "health question", "start or stop")  # in which a component's own code runs


class LoopWatch:
    def __init__(self, lanes: Sequence[Lane], limit_s: float) -> None:
        self._lanes = lanes
        self._by_task = {f"{lane.name}: {task}": lane for lane in lanes for task in _TASKS}
        self._limit_s = limit_s
        self._beat = time.monotonic()
        self._told = False  # of the block under way
        self._culprit: Lane | None = None
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
                culprit, self._culprit, self._told = self._culprit, None, False
                if culprit is not None:
                    culprit.open_circuit(f"it blocked the event loop for {blocked:.1f} s")
        finally:
            self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        pause = min(_BEAT_S, self._limit_s / 4)
        looked = time.monotonic()
        while not self._over.wait(pause):
            looked, before = time.monotonic(), looked
            if looked - before > pause + self._limit_s / 2:
                continue  # we were held up ourselves: the whole process was, and nobody in it is to blame
            if looked - self._beat < self._limit_s + _BEAT_S or self._told:
                continue
            task, frame = asyncio.current_task(loop), sys._current_frames().get(thread)
            self._culprit = self._blamed("" if task is None else task.get_name(), frame)
            self._told = True
            stack = "".join(traceback.format_stack(frame, limit=5)) if frame else None
            if self._culprit is not None:
                log.error("a component blocks the event loop", component=self._culprit.name, stack=stack)
            else:
                log.error("the event loop is blocked", task=None if task is None else task.get_name(), stack=stack)

    def _blamed(self, task: str, frame: FrameType | None) -> Lane | None:
        """Nobody, if several components have their code in the same package."""
        if task in self._by_task:
            return self._by_task[task]
        modules = (
            {f"{inner.f_globals.get('__name__', '')}." for inner, _ in traceback.walk_stack(frame)} if frame else ()
        )
        found = [lane for lane in self._lanes if any(module.startswith(f"{lane.package}.") for module in modules)]
        return found[0] if len(found) == 1 else None
