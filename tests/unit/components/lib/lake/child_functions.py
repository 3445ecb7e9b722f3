"""Functions that tests run in child processes."""

from __future__ import annotations

import os
import resource
import sys
import time


def echo(argument: bytes) -> bytes:
    return argument


def process_id(_argument: bytes) -> bytes:
    return str(os.getpid()).encode()


def environment(_argument: bytes) -> bytes:
    return "\n".join(sorted(os.environ)).encode()


def print_loudly(argument: bytes) -> bytes:
    sys.stdout.write("this is no answer\n")
    sys.stdout.flush()
    return argument


def fail(argument: bytes) -> bytes:
    raise ValueError(argument.decode())


def abort(_argument: bytes) -> bytes:
    os.abort()


def kill(_argument: bytes) -> bytes:
    os.kill(os.getpid(), 9)
    return b""


def sleep(_argument: bytes) -> bytes:
    time.sleep(600)
    return b""


def allocate(argument: bytes) -> bytes:
    return str(len(bytearray(int(argument)))).encode()


def memory_limit(_argument: bytes) -> bytes:
    return str(resource.getrlimit(resource.RLIMIT_AS)[0]).encode()
