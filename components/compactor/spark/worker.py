"""One attempt of a task, inside a Python worker of Spark.

It works only while it holds the lease: a connection to the driver, which lets one attempt of a task run at a time. When
it is told to stop, or loses the driver, it interrupts the merge, lets it finish what it has sent to the storage, and
says ``bye``; if that takes too long, the process exits. So the driver knows from the connection alone that nothing
writes any more, whatever Spark, its executors and the network do.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from components.compactor.spark.messages import TaskReply, TaskRequest, unpack
from components.lib.spark.worker_daemon import tune_worker

_CONNECT_S = 5.0
_PERMISSION_S = 60.0  # an earlier attempt may have to end first
_KEEPALIVE_S = 5
_WAKE_EVERY_S = 0.05
_OOM_SCORE = "500"
_OVERDUE_S = 60.0  # after the time limit, which the driver enforces


class LeaseRefused(Exception):
    pass


class DriverUnreachable(Exception):
    pass


def attempt(request: bytes) -> bytes:
    """Returns an encoded `TaskReply` to an encoded `TaskRequest`."""
    decoded = TaskRequest.decode(request)
    with _alarm(decoded):
        return _attempt(decoded).encode()


@contextmanager
def _alarm(request: TaskRequest) -> Iterator[None]:
    """The kernel ends a worker that is long overdue: its driver could not stop it, or is gone."""
    if request.limit_s is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request.limit_s + request.grace_s + _OVERDUE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _attempt(request: TaskRequest) -> TaskReply:
    try:
        if request.lease_address is None:
            _require_first_attempt()
            return _work(request)
        with LeaseClient(request, request.lease_address):
            return _work(request)
    except LeaseRefused as error:
        return TaskReply("refused", detail=str(error))
    except DriverUnreachable as error:
        return TaskReply("unreachable", detail=f"from {socket.gethostname()}: {error}")
    except KeyboardInterrupt:
        return TaskReply("stopped")


def _work(request: TaskRequest) -> TaskReply:
    try:
        work, argument = unpack(request.work)
    except ImportError as error:
        return TaskReply("unfit", detail=f"{socket.gethostname()}: {error}")
    tune_worker()
    try:
        result = work(argument)
    except MemoryError as error:
        return TaskReply("memory", detail=str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return TaskReply("memory", detail=str(error))
        return TaskReply("raised", _pickled(error), "".join(traceback.format_exception(error))[-8_000:])
    return TaskReply("done", pickle.dumps(result, protocol=5))


def _pickled(error: Exception) -> bytes:
    """Returns no bytes for an error that can't be pickled: its text is enough."""
    try:
        data = pickle.dumps(error, protocol=5)
        pickle.loads(data)  # noqa: S301  (pickled above)
    except Exception:
        return b""
    return data


def _require_first_attempt() -> None:
    """Without a lease it is not known whether an earlier attempt still writes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise LeaseRefused("an earlier attempt may still be writing")


class LeaseClient:
    """The worker's side of the lease. Raises `LeaseRefused` or `DriverUnreachable` if it can't be had."""

    def __init__(self, request: TaskRequest, address: tuple[str, int]) -> None:
        self._grace_s = request.grace_s
        self._ended = threading.Event()
        self._signal_lock = threading.Lock()  # held while a signal is sent, and while that is ended
        try:
            self._socket = socket.create_connection(address, _CONNECT_S)
        except OSError as error:
            raise DriverUnreachable(f"{address[0]}:{address[1]}: {error}") from error
        try:
            self._acquire(request.token)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        with suppress(OSError):  # Linux only: kill this process before the executor or the daemon
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        # Python's own handler, because `asyncio.run` replaces only that one: it then cancels the work as a whole, which
        # lets requests to the storage finish, instead of interrupting it wherever it is.
        self._signals = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
            signal.SIGURG: signal.signal(signal.SIGURG, _wake),
        }
        self._wait_for_stoper = threading.Thread(target=self._wait_for_stop, name="lease", daemon=True)
        self._wait_for_stoper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ignore_late_interrupt()
        with suppress(OSError):
            self._socket.sendall(b"bye\n")
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the listener
        self._wait_for_stoper.join()
        self._socket.close()
        for number, handler in self._signals.items():
            signal.signal(number, handler)

    def _ignore_late_interrupt(self) -> None:
        """The work is over: an interrupt that arrives now must not hit the code after it."""
        while True:
            try:
                with self._signal_lock:
                    self._ended.set()
                signal.signal(signal.SIGINT, _wake)
            except KeyboardInterrupt:
                continue
            return

    def _acquire(self, token: str) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        self._socket.settimeout(_PERMISSION_S)
        try:
            self._socket.sendall(f"{token} {socket.gethostname()} {os.getppid()} {os.getpid()}\n".encode())
            answer = self._socket.makefile("rb", buffering=0).readline().decode().strip()
        except OSError as error:
            raise DriverUnreachable(f"the driver does not answer: {error}") from error
        if answer != "go":
            raise LeaseRefused(answer.removeprefix("no ") or "the driver hung up")
        self._socket.settimeout(None)

    def _wait_for_stop(self) -> None:
        """Any input means stop: a word, or the end of the connection because the driver or the network failed."""
        with suppress(OSError):
            self._socket.recv(16)
        main = threading.main_thread().ident or 0
        with self._signal_lock:
            if self._ended.is_set():
                return
            signal.pthread_kill(main, signal.SIGINT)  # once: at a second one `asyncio.run` does not wait
        end = time.monotonic() + self._grace_s
        while not self._ended.wait(_WAKE_EVERY_S):
            # A signal that arrives just before a blocking call is not handled until that call returns.
            signal.pthread_kill(main, signal.SIGURG)
            if time.monotonic() > end:
                os._exit(1)


def _wake(_signal: int, _frame: FrameType | None) -> None:
    """Does nothing, which is enough to interrupt a blocking call."""
