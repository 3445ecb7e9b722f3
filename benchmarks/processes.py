"""CPU time and memory of processes, as Linux accounts for them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psycopg

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def deployed_environment(**settings: str) -> dict[str, str]:
    """Returns the environment of a process that starts as a deployed one does: with its bytecode compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | settings


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all its threads, in steps of 10 ms. Raises OSError if the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def memory_mb(pid: int | str = "self") -> tuple[float, float]:
    """Returns resident memory, now and at its peak. (``getrusage`` would count the parent's memory at the fork.)"""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024, int(lines["VmHWM"].split()[0]) / 1024


def tree(pid: int | None = None) -> list[int]:
    """Returns a process, by default this one, and all its descendants."""
    found = [os.getpid() if pid is None else pid]
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    for process in found:
        found += children.get(process, [])
    return found


def tree_cpu_seconds(without: Container[int] = ()) -> float:
    """Returns the CPU time of this process and its descendants, including those that have ended and were waited for."""
    total = 0.0
    for pid in tree():
        if pid not in without:
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(int(field) for field in fields[11:15]) / _TICKS_A_SECOND
    return total


def peaks_mb() -> dict[str, float]:
    """Returns the peak memory of each program below this process, by name; this process is ``driver``."""
    found = {"driver": memory_mb()[1]}
    for pid in tree()[1:]:
        with suppress(OSError, KeyError):  # gone, or dead and not yet buried
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            found[name] = found.get(name, 0.0) + memory_mb(pid)[1]
    return found


def reset_peaks() -> None:
    """Begins the peak memory of this process and its descendants again, at what each has now."""
    for pid in tree():
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


class WalsenderWatch:
    """Observes the backend that serves a slot while it is entered, because its figures vanish with it.

    ``streaming_since`` is the last moment (wall clock) at which it was not served yet: too early by 10 ms or two.
    """

    _PAUSE_S = 0.01
    _LOOKS_A_QUERY = 20

    def __init__(self, url: str, slot: str) -> None:
        self.begun = self.streaming_since = 0.0
        self._connection = psycopg.connect(url, autocommit=True)
        self._slot = slot
        self._seconds: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def cpu(self) -> float:
        return sum(self._seconds.values())

    def __enter__(self) -> WalsenderWatch:
        self.begun = self.streaming_since = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._connection.close()

    def _look(self) -> None:
        pid: int | None = None
        looks = 0
        while not self._done.wait(self._PAUSE_S):
            now = time.time()
            if pid is None or looks % self._LOOKS_A_QUERY == 0:
                pid = self._serving()
            looks += 1
            if pid is not None:
                with suppress(OSError):  # it has just ended
                    self._seconds[pid] = cpu_seconds(pid)
            elif not self._seconds:
                self.streaming_since = now

    def _serving(self) -> int | None:
        query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        row = self._connection.execute(query, [self._slot]).fetchone()
        return None if row is None else row[0]
