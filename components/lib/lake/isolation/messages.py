"""Messages between a child process and its parent: frames of a length and that many bytes of msgpack.

Not pickle: a child that hostile bytes have taken over could make its parent run anything.
"""

from __future__ import annotations

from typing import BinaryIO

import msgspec

LENGTH = 8
READY = b"ready"


class ChildRequest(msgspec.Struct, frozen=True, array_like=True):
    function: str  # "module:name": takes bytes and returns bytes
    argument: bytes
    limit_s: float
    memory_bytes: int  # that the process may allocate beyond what it has


class ChildResponse(msgspec.Struct, frozen=True, array_like=True):
    result: bytes = b""
    error: str | None = None  # the type of the error that was raised
    message: str = ""


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH, "big") + data


def read_frame(stream: BinaryIO) -> bytes | None:
    """Returns None at the end of the stream."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    length = int.from_bytes(head, "big")
    data = stream.read(length)
    return data if len(data) == length else None
