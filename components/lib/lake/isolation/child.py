"""The child process: calls functions by name, one at a time, until its parent closes its standard input.

    python -m components.lib.lake.isolation.child

It ends together with its parent: a thread waits for the end of the input. Work that blocks that thread is ended by a
kernel alarm after its time limit.
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

_IDLE_S = 60.0  # without a call until the process ends; the next call starts another
_GRACE_S = 5.0  # the parent checks the time limit too, and should notice first
_LONGEST_MESSAGE = 2_000


def main() -> None:
    responses = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what a library prints is not a response
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls: queue.Queue[bytes] = queue.Queue()
    Thread(target=_listen, args=[sys.stdin.buffer, calls], daemon=True).start()
    _send(responses, READY)
    while True:
        try:
            data = calls.get(timeout=_IDLE_S)
        except queue.Empty:
            os._exit(0)
        _send(responses, msgspec.msgpack.encode(_respond(msgspec.msgpack.decode(data, type=ChildRequest))))


def _listen(stream: BinaryIO, calls: queue.Queue[bytes]) -> None:
    while (data := read_frame(stream)) is not None:
        calls.put(data)
    os._exit(0)


def _respond(call: ChildRequest) -> ChildResponse:
    module, _, name = call.function.partition(":")
    function = cast("Callable[[bytes], bytes]", getattr(importlib.import_module(module), name))
    signal.setitimer(signal.ITIMER_REAL, call.limit_s + _GRACE_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    _limit_memory(call.memory_bytes, limits[1])
    try:
        return ChildResponse(function(call.argument))
    except Exception as error:
        return ChildResponse(error=type(error).__name__, message=str(error)[:_LONGEST_MESSAGE])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more: int, hard: int) -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return  # not Linux: only the time limit applies
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + more
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _send(responses: BinaryIO, data: bytes) -> None:
    responses.write(framed(data))
    responses.flush()


if __name__ == "__main__":
    main()
