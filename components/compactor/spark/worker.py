"""One attempt of a task, inside a Python worker of Spark.

It works only while it holds the leash: a connection to the driver, which lets one attempt of a task go at a time. Told
to stop, or left alone by the driver, it interrupts the merge, lets it end what it has sent to the storage, and says
goodbye; if that takes too long, the process ends. So the driver knows from the connection alone that nothing works any
more, whatever Spark, its executors and the network do: Spark calls a cancelled task killed while its worker writes on.
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
from typing import TYPE_CHECKING, Self

from components.compactor.spark.messages import Order, Outcome, unpack
from components.compactor.spark.worker_tuning import break_habits

if TYPE_CHECKING:
    import pyarrow as pa

_CONNECT_S = 5.0
_PERMISSION_S = 60.0  # an attempt before this one may have to end first
_KEEPALIVE_S = 5
_NUDGE_EVERY_S = 0.05
_FIRST_VICTIM = "500"
_OVERDUE_S = 60.0  # beyond the deadline, which is the driver's to keep


class Refused(Exception):
    pass


class Unreachable(Exception):
    pass


def attempt(order: bytes, _row: object = None) -> bytes:
    opened = Order.opened(order)
    with _alarm(opened):
        return _attempt(opened).sealed()


def attempts(order: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For where there are only tables: one attempt for each row that comes."""
    import pyarrow as pa

    for batch in batches:
        answers = [attempt(order) for _ in range(batch.num_rows)]
        yield pa.RecordBatch.from_arrays([pa.array(answers, pa.binary())], ["answer"])


@contextmanager
def _alarm(order: Order) -> Iterator[None]:
    """The kernel ends a worker that is long overdue, whatever it does then: the driver has asked in vain, or can't."""
    if order.limit_s is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, order.limit_s + order.patience_s + _OVERDUE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _attempt(order: Order) -> Outcome:
    try:
        if order.leash is None:
            _require_first()
            return _work(order)
        with Hold(order, order.leash):
            return _work(order)
    except Refused as error:
        return Outcome("refused", told=str(error))
    except Unreachable as error:
        return Outcome("unreachable", told=f"from {socket.gethostname()}: {error}")
    except KeyboardInterrupt:
        return Outcome("stopped")


def _work(order: Order) -> Outcome:
    try:
        work, argument = unpack(order.work)
    except ImportError as error:
        return Outcome("unfit", told=f"{socket.gethostname()}: {error}")
    break_habits()
    try:
        result = work(argument)
    except MemoryError as error:
        return Outcome("memory", told=str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return Outcome("memory", told=str(error))
        return Outcome("raised", _pickled(error), "".join(traceback.format_exception(error))[-8_000:])
    return Outcome("done", pickle.dumps(result, protocol=5))


def _pickled(error: Exception) -> bytes:
    """Nothing for an error that does not survive the journey: its text does."""
    try:
        data = pickle.dumps(error, protocol=5)
        pickle.loads(data)  # noqa: S301  (ours, a moment ago)
    except Exception:
        return b""
    return data


def _require_first() -> None:
    """Without a leash nobody knows whether an attempt before this one still writes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise Refused("an attempt before this one may still be writing")


class Hold:
    """The worker's end of the leash. Raises Refused or Unreachable instead of being entered."""

    def __init__(self, order: Order, leash: tuple[str, int]) -> None:
        self._patience_s = order.patience_s
        self._ended = threading.Event()
        self._turn = threading.Lock()  # for who sends a signal, and who does not want one any more
        try:
            self._socket = socket.create_connection(leash, _CONNECT_S)
        except OSError as error:
            raise Unreachable(f"{leash[0]}:{leash[1]}: {error}") from error
        try:
            self._ask(order.token)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        with suppress(OSError):  # where there is one: rather this process than the executor or the daemon
            Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
        # Python's own, since `asyncio.run` does the right thing only if it finds that: it cancels the work as a whole,
        # which lets what was sent to the storage come to an end, instead of breaking off wherever it stands.
        self._signals = {
            signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
            signal.SIGURG: signal.signal(signal.SIGURG, _nudged),
        }
        self._listener = threading.Thread(target=self._listen, name="leash", daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cover_ears()
        with suppress(OSError):
            self._socket.sendall(b"bye\n")
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the listener
        self._listener.join()
        self._socket.close()
        for number, handler in self._signals.items():
            signal.signal(number, handler)

    def _cover_ears(self) -> None:
        """An interruption that was on its way has come too late."""
        while True:
            try:
                with self._turn:
                    self._ended.set()
                signal.signal(signal.SIGINT, _nudged)
            except KeyboardInterrupt:
                continue
            return

    def _ask(self, token: str) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        self._socket.settimeout(_PERMISSION_S)
        try:
            self._socket.sendall(f"{token} {socket.gethostname()} {os.getppid()} {os.getpid()}\n".encode())
            answer = self._socket.makefile("rb", buffering=0).readline().decode().strip()
        except OSError as error:
            raise Unreachable(f"the driver does not answer: {error}") from error
        if answer != "go":
            raise Refused(answer.removeprefix("no ") or "the driver hung up")
        self._socket.settimeout(None)

    def _listen(self) -> None:
        """Whatever comes now means stop: a word, the end of the driver, or of the way to it."""
        with suppress(OSError):
            self._socket.recv(16)
        main = threading.main_thread().ident or 0
        with self._turn:
            if self._ended.is_set():
                return
            signal.pthread_kill(main, signal.SIGINT)  # once: a second one would not be so gentle
        end = time.monotonic() + self._patience_s
        while not self._ended.wait(_NUDGE_EVERY_S):
            # A signal that comes just before a call that blocks is not seen before that call returns.
            signal.pthread_kill(main, signal.SIGURG)
            if time.monotonic() > end:
                os._exit(1)


def _nudged(_signal: int, _frame: FrameType | None) -> None:
    """Does nothing, which is enough to interrupt a call that blocks."""
