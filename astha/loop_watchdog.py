"""Detects a component that blocks the event loop.

A blocked loop can't watch itself, so a thread does. The thread can't interrupt the component, but it logs which one it
is with its stack. Once the loop runs again, that component's circuit is opened, so that it happens once. Calls of a
component are recognised by their task, code in tasks of its own by its package. The lane's own work, such as a log line
that waits for a slow terminal, is not the component's fault.
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

from astha.lanes.calls import COMPONENT_TASKS, WORKER, task_name
from astha.lanes.inspection import code_package
from astha.lanes.lane import Lane

log = structlog.get_logger(__name__)

_HEARTBEAT_S = 0.1


class LoopWatchdog:
    def __init__(self, lanes: Sequence[Lane], limit_s: float) -> None:
        self._by_task = {task_name(lane.name, task): lane for lane in lanes for task in COMPONENT_TASKS}
        self._packages = [(lane, f"{code_package(lane)}.") for lane in lanes]
        self._limit_s = limit_s
        self._heartbeat = time.monotonic()
        self._logged = False  # the block in progress
        self._culprit: Lane | None = None
        self._stopped = threading.Event()

    async def run(self) -> None:
        """Watches until cancelled."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="loop watchdog", daemon=True
        )
        self._heartbeat = time.monotonic()
        thread.start()
        try:
            while True:
                await asyncio.sleep(_HEARTBEAT_S)
                blocked = time.monotonic() - self._heartbeat - _HEARTBEAT_S
                self._heartbeat = time.monotonic()
                culprit, self._culprit, self._logged = self._culprit, None, False
                if culprit is not None:
                    culprit.open_circuit(f"it blocked the event loop for {blocked:.1f} s")
        finally:
            self._stopped.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        pause = min(_HEARTBEAT_S, self._limit_s / 4)
        checked = time.monotonic()
        while not self._stopped.wait(pause):
            checked, before = time.monotonic(), checked
            if checked - before > pause + self._limit_s / 2:
                continue  # this thread was delayed too: the whole process was, and no component is the culprit
            if checked - self._heartbeat < self._limit_s + _HEARTBEAT_S or self._logged:
                continue
            task, frame = asyncio.current_task(loop), sys._current_frames().get(thread)
            self._culprit = self._find_culprit("" if task is None else task.get_name(), frame)
            self._logged = True
            stack = "".join(traceback.format_stack(frame, limit=5)) if frame else None
            if self._culprit is not None:
                log.error("component blocks the event loop", component=self._culprit.name, stack=stack)
            else:
                log.error("event loop is blocked", task=None if task is None else task.get_name(), stack=stack)

    def _find_culprit(self, task: str, frame: FrameType | None) -> Lane | None:
        """Returns None if no call is in flight in a worker's task, and if several components share a package."""
        lane = self._by_task.get(task)
        if lane is not None:
            return lane if lane.calls.in_flight or not task.endswith(WORKER) else None
        modules = (
            {f"{inner.f_globals.get('__name__', '')}." for inner, _ in traceback.walk_stack(frame)} if frame else ()
        )
        found = [lane for lane, package in self._packages if any(module.startswith(package) for module in modules)]
        return found[0] if len(found) == 1 else None
