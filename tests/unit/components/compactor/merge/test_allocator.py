from __future__ import annotations

import platform
import resource
from pathlib import Path

import pyarrow as pa
import pytest

from components.compactor.merge.allocator import merge_allocator

ONLY_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
LARGE = 200 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def fill() -> None:
    """Touches every page of a large buffer, and frees it."""
    buffer = pa.allocate_buffer(LARGE)
    memoryview(buffer).cast("B")[:: resource.getpagesize()] = bytes(-(-LARGE // resource.getpagesize()))


@ONLY_GLIBC
def test_freed_memory_is_used_again() -> None:
    with merge_allocator(1 << 40):
        for _ in range(3):  # small allocations may take the beginning of the first one's memory
            fill()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        fill()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < LARGE // resource.getpagesize() // 10


@ONLY_GLIBC
def test_a_merge_keeps_no_more_than_a_task_may_hold() -> None:
    with merge_allocator(1 << 20):
        fill()
        during = resident_bytes()
    assert resident_bytes() < during - LARGE // 2


def test_the_allocator_of_others_is_restored_after_an_error() -> None:
    before = pa.default_memory_pool().backend_name
    with pytest.raises(KeyError), merge_allocator(1 << 30):
        raise KeyError
    assert pa.default_memory_pool().backend_name == before
