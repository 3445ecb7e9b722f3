"""A session whose JVM is killed at a point of a compaction, once.

A file beside the table's tells a worker at which point to kill it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
from pyspark import SparkContext

from components.compactor.merge import MergeResult, MergeTask, merge
from components.compactor.spark import worker_daemon
from components.compactor.spark.executor import SparkExecutor
from components.lib.lake.storage import local_files
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.output_streams import Writable
from components.lib.spark.classic import ClassicSession
from components.lib.spark.jvm import Jvm
from components.lib.spark.session import SparkJob
from components.lib.spark.settings import SparkSettings
from registry.private_files import PRIVATE, Modes

T = TypeVar("T")

_LONGEST_S = 60.0


class Point(StrEnum):
    """In the order of a compaction."""

    IDLE = "between two jobs"
    STARTING = "a JVM that starts"
    CONNECTING = "a JVM without a session"
    SENDING = "a task that is about to be sent"
    BEGINNING = "a worker that begins"
    HALF_A_FILE = "half a file"
    ALL_WRITTEN = "all files written"
    ANSWERING = "a task that has ended, but for its answer"


WITHOUT_SESSION = (Point.IDLE, Point.STARTING, Point.CONNECTING)
IN_A_WORKER = (Point.BEGINNING, Point.HALF_A_FILE, Point.ALL_WRITTEN)


class CrashingSession(ClassicSession):
    crash_at: Point | None = None

    def kill_at(self, point: Point) -> bool:
        if CrashingSession.crash_at is not point:
            return False
        CrashingSession.crash_at = None
        assert self._jvm is not None
        self._jvm.process.kill()
        return True

    def run(self, job: SparkJob) -> bytes:
        ours = "shop." in job.description  # not the worker check
        if ours:
            self.kill_at(Point.SENDING)
        answer = super().run(job)
        if ours and self.kill_at(Point.ANSWERING):
            self.context.setLocalProperty("asked", "after its death")  # which fails as the rest of the call would have
        return answer

    def _watch(self, jvm: Jvm) -> None:
        self.kill_at(Point.STARTING)
        super()._watch(jvm)

    def _connect(self, port: int, secret: str) -> SparkContext:
        self.kill_at(Point.CONNECTING)
        return super()._connect(port, secret)


def open_executor() -> SparkExecutor:
    return SparkExecutor(
        SparkSettings(master="local[2]", memory="512m"),
        merge_and_crash,
        partial(CrashingSession, worker_daemon=worker_daemon.MODULE),
    )


def marker(table: Path) -> Path:
    return table / "crash-at"


def ask_worker(table: Path, point: Point) -> None:
    table.mkdir(exist_ok=True)
    marker(table).write_text(point)


def merge_and_crash(task: MergeTask) -> MergeResult:
    place = marker(parse(task.outputs[0]).path.parents[1])
    point = None
    with suppress(FileNotFoundError):
        point = Point(place.read_text())
        place.unlink()
    if point is Point.BEGINNING:
        kill_jvm()
    if point is Point.HALF_A_FILE:
        local_files.write = write_half
    result = merge(task)
    if point is Point.ALL_WRITTEN:
        kill_jvm()
    return result


def write_half(path: Path, fill: Callable[[Writable], T], modes: Modes = PRIVATE) -> T:
    """Stays there until it is ended."""
    with path.with_name(f"{path.name}.partial").open("wb") as sink:
        fill(sink)
        sink.truncate(sink.tell() // 2)
        kill_jvm()
    raise AssertionError("it should be dead")


def kill_jvm() -> None:
    """Kills the JVM that has started the daemon of this worker."""
    os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
    time.sleep(_LONGEST_S)
