"""inotify(7): the kernel reports what happens to the files of a directory."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
OVERFLOW = 0x4000

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows


def watch(directory: Path, mask: int) -> int | None:
    """Returns a descriptor that does not block, or None if there is no inotify, no directory, or no free watch."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(directory), ctypes.c_uint32(mask)) < 0:
        os.close(descriptor)
        return None
    return descriptor


def events(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """Yields the mask and the file's name of each event that waits."""
    try:
        data = os.read(descriptor, 65536)
    except BlockingIOError:
        return
    offset = 0
    while offset < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size + length
        yield mask, data[offset - length : offset].rstrip(b"\0")
