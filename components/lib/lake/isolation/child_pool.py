"""A small pool of child processes: started when they are needed, used for many calls, ended when they are idle.

ChildFailed           the call failed because of its argument
|-- ChildDied         the process crashed or exceeded its time limit; it is replaced
`-- ChildRaised       the function raised an error of the type ``kind``
ChildNotStarted       no process can be started                -> check memory and the Python installation
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from threading import BoundedSemaphore, Lock

import msgspec

from astha.errors import AsthaError
from components.lib.lake.isolation.messages import LENGTH, READY, ChildRequest, ChildResponse, framed

_MODULE = "components.lib.lake.isolation.child"
_START_S = 60.0  # for Python to start on a busy machine
_CHUNK = 1 << 20
_LARGEST_RESPONSE = 1 << 30
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


class ChildFailed(AsthaError):
    pass


class ChildDied(ChildFailed):
    pass


class ChildRaised(ChildFailed):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message or kind)
        self.kind = kind


class ChildNotStarted(AsthaError):
    pass


class _ChildExited(Exception):
    """The process has ended, or has closed its output."""


class ChildPool:
    """Safe for use by several threads. Each call blocks its thread: an event loop uses `asyncio.to_thread`."""

    def __init__(self, most: int = 2, *, memory_bytes: int = 1 << 30) -> None:
        self._memory_bytes = memory_bytes
        self._slots = BoundedSemaphore(most)
        self._lock = Lock()
        self._idle: list[_Child] = []
        self.started = 0

    def call(self, function: str, argument: bytes, *, limit_s: float, memory_bytes: int | None = None) -> bytes:
        """Calls ``function``, written "module:name", which takes and returns bytes.

        Raises `ChildFailed` if the argument is at fault. If the process is killed from outside, the call is repeated
        once in another: the argument is blamed only if that happens again.
        """
        call = ChildRequest(function, argument, limit_s, self._memory_bytes if memory_bytes is None else memory_bytes)
        with self._slots:
            for last in (False, True):
                child = self._take()
                try:
                    response = child.send(call)
                except _ChildExited:
                    how = child.end()
                    if how in (0, -signal.SIGKILL) and not last:
                        continue
                    raise ChildDied(_how_it_ended(how)) from None
                except BaseException:
                    child.end()
                    raise
                self._give_back(child)
                if response.error is not None:
                    raise ChildRaised(response.error, response.message)
                return response.result
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        """Ends idle processes. Calls in progress end theirs."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _take(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                child.end()
            self.started += 1
        return _Child()

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._idle.append(child)


class _Child:
    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", _MODULE]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # an interrupt of the terminal is the parent's to response
            )
        except OSError as error:
            raise ChildNotStarted(f"{command[0]} can't be run to read files that are not trusted: {error}") from error
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            ready = self._exchange(b"", time.monotonic() + _START_S)
        except (_ChildExited, ChildDied) as error:
            raise ChildNotStarted(
                f"a process for files that are not trusted did not start ({_how_it_ended(self.end())})"
            ) from error
        except BaseException:
            self.end()
            raise
        if ready != READY:
            self.end()
            raise ChildNotStarted("a process for files that are not trusted did not start")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, call: ChildRequest) -> ChildResponse:
        data = self._exchange(framed(msgspec.msgpack.encode(call)), time.monotonic() + call.limit_s)
        try:
            return msgspec.msgpack.decode(data, type=ChildResponse)
        except msgspec.DecodeError as error:
            raise ChildDied("its process sent a response that can't be read") from error

    def end(self) -> int:
        """Kills the process if it still runs. Returns its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2 if self._closed() else 0)
        self._process.kill()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return code

    def _closed(self) -> bool:
        """Returns whether the output is closed, which happens a moment before the process ends."""
        poll = select.poll()
        poll.register(self._out, 0)
        return bool(poll.poll(0))

    def _exchange(self, request: bytes, deadline: float) -> bytes:
        """Raises `ChildDied` after the deadline, `_ChildExited` if no response will come."""
        left, found = memoryview(request), bytearray()
        while True:
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if left:
                poll.register(self._in, select.POLLOUT)
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise ChildDied("it exceeds its time limit")
            ready = dict(poll.poll(min(seconds, 60.0) * 1000 + 1))
            if self._in in ready and left:
                left = left[self._written(left) :]
            if self._out in ready:
                found += self._read()
                length = int.from_bytes(found[:LENGTH], "big") if len(found) >= LENGTH else _LARGEST_RESPONSE
                if len(found) >= LENGTH and length > _LARGEST_RESPONSE:
                    raise ChildDied("its process sent a response that can't be read")
                if len(found) >= LENGTH + length:
                    return bytes(found[LENGTH : LENGTH + length])

    def _written(self, left: memoryview) -> int:
        try:
            return os.write(self._in, left[:_CHUNK])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _ChildExited from error

    def _read(self) -> bytes:
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _ChildExited from error
        if not data:
            raise _ChildExited
        return data


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"


def _environment() -> dict[str, str]:
    """Returns what a Python process needs, without secrets of this process."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


@cache
def shared_child_pool() -> ChildPool:
    """Returns the pool of this process."""
    found = ChildPool()
    atexit.register(found.close)
    return found
