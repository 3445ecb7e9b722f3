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
_START_S = 60.0  # of a Python, on a busy machine
_CHUNK = 1 << 20
_LARGEST_ANSWER = 1 << 30
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SYSTEMROOT")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


class ChildFailed(AsthaError):
    pass


class ChildDied(ChildFailed):
    pass


class ChildRaised(ChildFailed):
    def __init__(self, kind: str, told: str) -> None:
        super().__init__(told or kind)
        self.kind = kind


class ChildNotStarted(AsthaError):
    pass


class _Ended(Exception):
    """The process has ended, or has closed its output."""


class ChildPool:
    """Safe for use by several threads. Each call blocks its thread: an event loop uses `asyncio.to_thread`."""

    def __init__(self, most: int = 2, *, memory_bytes: int = 1 << 30) -> None:
        self._memory_bytes = memory_bytes
        self._room = BoundedSemaphore(most)
        self._lock = Lock()
        self._idle: list[_Child] = []
        self.started = 0

    def call(self, function: str, argument: bytes, *, limit_s: float, memory_bytes: int | None = None) -> bytes:
        """``function`` is "module:name", of a function that takes and returns bytes.

        ChildFailed if the argument is at fault. A process that was killed from outside is replaced once: the argument
        need not be the reason, unless it happens again.
        """
        call = ChildRequest(function, argument, limit_s, self._memory_bytes if memory_bytes is None else memory_bytes)
        with self._room:
            for last in (False, True):
                child = self._take()
                try:
                    answer = child.ask(call)
                except _Ended:
                    how = child.end()
                    if how in (0, -signal.SIGKILL) and not last:
                        continue
                    raise ChildDied(_told(how)) from None
                except BaseException:
                    child.end()
                    raise
                self._give_back(child)
                if answer.error is not None:
                    raise ChildRaised(answer.error, answer.told)
                return answer.result
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        """Ends idle processes. Calls under way end their own."""
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
                start_new_session=True,  # an interrupt of the terminal is the parent's to answer
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
        except (_Ended, ChildDied) as error:
            raise ChildNotStarted(
                f"a process for files that are not trusted did not start ({_told(self.end())})"
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

    def ask(self, call: ChildRequest) -> ChildResponse:
        data = self._exchange(framed(msgspec.msgpack.encode(call)), time.monotonic() + call.limit_s)
        try:
            return msgspec.msgpack.decode(data, type=ChildResponse)
        except msgspec.DecodeError as error:
            raise ChildDied("its process gave an answer that can't be read") from error

    def end(self) -> int:
        """Its exit code: what it ended with by itself, if it has."""
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
        """Whether its output is at its end, which is a moment before its process is."""
        poll = select.poll()
        poll.register(self._out, 0)
        return bool(poll.poll(0))

    def _exchange(self, request: bytes, deadline: float) -> bytes:
        """ChildDied after the deadline, _Ended if there is no answer to come."""
        left, found = memoryview(request), bytearray()
        while True:
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if left:
                poll.register(self._in, select.POLLOUT)
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise ChildDied("it takes longer than it may")
            ready = dict(poll.poll(min(seconds, 60.0) * 1000 + 1))
            if self._in in ready and left:
                left = left[self._written(left) :]
            if self._out in ready:
                found += self._read()
                length = int.from_bytes(found[:LENGTH], "big") if len(found) >= LENGTH else _LARGEST_ANSWER
                if len(found) >= LENGTH and length > _LARGEST_ANSWER:
                    raise ChildDied("its process gave an answer that can't be read")
                if len(found) >= LENGTH + length:
                    return bytes(found[LENGTH : LENGTH + length])

    def _written(self, left: memoryview) -> int:
        try:
            return os.write(self._in, left[:_CHUNK])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _Ended from error

    def _read(self) -> bytes:
        try:
            data = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _Ended from error
        if not data:
            raise _Ended
        return data


def _told(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"


def _environment() -> dict[str, str]:
    """What a Python needs, and no secret of this process's."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


@cache
def shared_child_pool() -> ChildPool:
    """Those of this process."""
    found = ChildPool()
    atexit.register(found.close)
    return found
