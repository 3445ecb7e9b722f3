"""The processes of a story, and their end: none is left when `Processes.close` has returned."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from registry.embedded_postgres import die_with_parent

_STOP_S = 20.0
_LOOK_S = 0.05
_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


class TooLong(Exception):
    """A command did not end within its limit."""


class Processes:
    """Each command is a session of its own: Ctrl-C reaches the story alone, which then ends them in order."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._services: list[subprocess.Popen[bytes]] = []
        _adopt_orphans()

    def run(self, command: str, directory: Path, limit_s: float) -> Ended:
        process = self._started(["/bin/bash", "-c", f"set -o pipefail\n{command}"], directory, None)
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise TooLong(f"not finished within {limit_s:.0f} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return Ended(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))

    def start(self, program: str, log: Path, directory: Path) -> subprocess.Popen[bytes]:
        process = self._started(["/bin/bash", "-c", f"exec {program}"], directory, log)
        self._services.append(process)
        return process

    def close(self) -> None:
        """Ends services in reverse order, then every process that is left. Can be repeated."""
        while self._services:
            process = self._services[-1]
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._services.pop()
        _kill_descendants()

    def _started(self, command: list[str], directory: Path, log: Path | None) -> subprocess.Popen[bytes]:
        output = subprocess.PIPE if log is None else log.open("wb")
        try:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        finally:
            if not isinstance(output, int):
                output.close()


def _adopt_orphans() -> None:
    """On Linux, a process whose parent has died becomes a child of this one, and is found by `_kill_descendants`."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_descendants() -> None:
    deadline = time.monotonic() + _STOP_S
    while (found := list(_descendants())) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LOOK_S)


def _descendants() -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(file.read_text().rpartition(")")[2].split()[1]), []).append(int(file.parent.name))
    waiting = [os.getpid()]
    while waiting:
        found = children.get(waiting.pop(), [])
        yield from found
        waiting += found
