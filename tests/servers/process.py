"""A server process with a log, which ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from registry.embedded_postgres import die_with_parent

_LOOK_S = 0.05


class NoServer(Exception):
    """The server did not start; the message says why."""


class ServerProcess:
    """The server and its children are one process group. It can be started again after `stop` or `kill`."""

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], ready: Callable[[], bool], limit_s: float
    ) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        deadline = time.monotonic() + limit_s
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NoServer(f"{self._name} did not start: {command[0]}: {self.log[-2_000:]}")
            time.sleep(_LOOK_S)

    def suspend(self) -> None:
        """Returns when every thread has stopped: on a busy machine that takes a moment."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        while not all(_stopped(task) for task in tasks.glob("*/stat")):
            time.sleep(_LOOK_S / 10)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _stopped(stat: Path) -> bool:
    """A thread that has ended meanwhile counts as stopped."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in ("T", "t", "Z", "X")
    except OSError:
        return True


class Server:
    """A server in a process of its own: a context that starts it and stops it. Subclasses define `start`."""

    _process: ServerProcess

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._process.log

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.resume()
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        """Kills it and starts it again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Suspends the process: connections stay open, and nothing responds, until `resume`."""
        self._process.suspend()

    def resume(self) -> None:
        with suppress(AssertionError, ProcessLookupError):
            self._process.resume()
