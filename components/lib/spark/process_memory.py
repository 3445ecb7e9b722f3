"""The memory of a session's JVM and of the workers below it."""

from __future__ import annotations

import msgspec
import psutil


class ProcessMemory(msgspec.Struct, frozen=True):
    """Resident bytes. The workers' sum is an upper bound: they share pages with the process they were forked from."""

    jvm: int = 0
    workers: int = 0
    processes: int = 0


def memory_of_session(pid: int) -> ProcessMemory:
    """``pid`` is the JVM's. Processes that end meanwhile count as zero."""
    try:
        jvm = psutil.Process(pid)
        below = jvm.children(recursive=True)
        own = jvm.memory_info().rss
    except psutil.Error:
        return ProcessMemory()
    workers = [size for process in below if (size := _resident(process))]
    return ProcessMemory(own, sum(workers), len(workers))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
