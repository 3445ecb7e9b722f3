"""The memory of a merge: columns of many megabytes, allocated and freed one after the other.

Arrow's own allocators return a freed column to the system and get the next one page by page, which costs a merge as
much as sorting does. glibc's can be told to keep it. A worker keeps no more than a task may hold, and Spark ends a
worker that was idle for a minute.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of `mallopt`, in glibc's malloc.h
_LARGE = 1 << 30


@contextmanager
def merge_allocator(memory_bytes: int) -> Iterator[None]:
    """Lets Arrow use an allocator that keeps freed memory, up to ``memory_bytes`` after the merge."""
    before = pa.default_memory_pool()
    library = _keeping_library()
    if library is not None:
        pa.set_memory_pool(pa.system_memory_pool())
    elif "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        if library is not None and _resident_bytes() > memory_bytes:
            library.malloc_trim(0)


@cache
def _keeping_library() -> ctypes.CDLL | None:
    """Tells glibc, for the whole process, to keep freed memory in one arena, which all threads can use. Returns None
    where the C library is another one.
    """
    try:
        library = ctypes.CDLL(None)
        options = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE))
        kept = all(library.mallopt(option, value) for option, value in options)
        return library if kept and hasattr(library, "malloc_trim") else None
    except (OSError, AttributeError):
        return None


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
