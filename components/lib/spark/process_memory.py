"""What the JVM of a session and the workers below it hold."""

from __future__ import annotations

import msgspec
import psutil


class Memory(msgspec.Struct, frozen=True):
    """Resident bytes. Workers share pages with the process that they were forked from: their sum is an upper bound."""

    jvm: int = 0
    workers: int = 0
    processes: int = 0


def memory_below(pid: int) -> Memory:
    """Processes that end while they are counted count nothing."""
    try:
        jvm = psutil.Process(pid)
        below = jvm.children(recursive=True)
        own = jvm.memory_info().rss
    except psutil.Error:
        return Memory()
    workers = [size for process in below if (size := _resident(process))]
    return Memory(own, sum(workers), len(workers))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
