"""A child process: calls functions by name, one at a time, until its parent closes its standard input.

    python -m components.lib.lake.isolation.child

It ends when its parent does, at once: a thread of its own waits for the end of the input. Work that holds that thread
up ends at its time limit, by an alarm of the kernel, whatever the process is doing then.
"""

from __future__ import annotations

import importlib
import os
import queue
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import BinaryIO, cast

import msgspec

from components.lib.lake.isolation.messages import READY, ChildRequest, ChildResponse, framed, read_frame

_IDLE_S = 60.0  # without a call, before the process ends; the next call starts another
_GRACE_S = 5.0  # the parent has its own clock, and is the first to know
_LONGEST = 2_000


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what a library prints is no answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls: queue.Queue[bytes] = queue.Queue()
    Thread(target=_listen, args=[sys.stdin.buffer, calls], daemon=True).start()
    _send(answers, READY)
    while True:
        try:
            data = calls.get(timeout=_IDLE_S)
        except queue.Empty:
            os._exit(0)
        _send(answers, msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(data, type=ChildRequest))))


def _listen(stream: BinaryIO, calls: queue.Queue[bytes]) -> None:
    while (data := read_frame(stream)) is not None:
        calls.put(data)
    os._exit(0)


def _answer(call: ChildRequest) -> ChildResponse:
    module, _, name = call.function.partition(":")
    function = cast("Callable[[bytes], bytes]", getattr(importlib.import_module(module), name))
    signal.setitimer(signal.ITIMER_REAL, call.limit_s + _GRACE_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    _limit_memory(call.memory_bytes, limits[1])
    try:
        return ChildResponse(function(call.argument))
    except Exception as error:
        return ChildResponse(error=type(error).__name__, told=str(error)[:_LONGEST])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more: int, hard: int) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return  # not Linux, where the time limit has to do
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + more
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _send(answers: BinaryIO, data: bytes) -> None:
    answers.write(framed(data))
    answers.flush()


if __name__ == "__main__":
    main()
