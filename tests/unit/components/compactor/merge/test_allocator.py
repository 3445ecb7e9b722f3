from __future__ import annotations

import platform
import subprocess
import sys

import pyarrow as pa
import pytest

from components.compactor.merge.allocator import merge_allocator

ONLY_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
LARGE, FILLS = 200 << 20, 40

_COMMON = f"""
import resource
from pathlib import Path
import pyarrow as pa
from components.compactor.merge.allocator import merge_allocator

page = resource.getpagesize()

def fill():
    buffer = pa.allocate_buffer({LARGE})
    memoryview(buffer).cast("B")[::page] = bytes(-(-{LARGE} // page))

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * page
"""

_USED_AGAIN = f"""
with merge_allocator(1 << 40):
    before = faults()
    for _ in range({FILLS}):
        fill()
    print((faults() - before) * page)
"""

_RETURNED = """
with merge_allocator(1 << 20):
    fill()
    during = resident()
print(during - resident())
"""


def printed_bytes(script: str) -> int:
    """Runs a script in a process of its own, as a merge does: in one with other threads' arenas, glibc keeps those."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMON + script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@ONLY_GLIBC
def test_freed_memory_is_used_again() -> None:
    """Not each time: after a small allocation in a freed block, the next large one does not fit there."""
    assert printed_bytes(_USED_AGAIN) < FILLS * LARGE // 2


@ONLY_GLIBC
def test_a_merge_keeps_no_more_than_a_task_may_hold() -> None:
    assert printed_bytes(_RETURNED) > LARGE // 2


def test_the_allocator_of_others_is_restored_after_an_error() -> None:
    before = pa.default_memory_pool().backend_name
    with pytest.raises(KeyError), merge_allocator(1 << 30):
        raise KeyError
    assert pa.default_memory_pool().backend_name == before
