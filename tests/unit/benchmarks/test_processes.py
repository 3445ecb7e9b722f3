from __future__ import annotations

import os
import time

import pytest

from benchmarks.processes import cpu_seconds, memory_mb


def test_cpu_is_what_the_process_used() -> None:
    before = cpu_seconds(os.getpid())
    begun = time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    assert 0.08 <= cpu_seconds(os.getpid()) - before <= time.process_time() - begun + 0.02


def test_the_peak_is_at_least_what_is_used() -> None:
    now, peak = memory_mb()
    assert 0 < now <= peak


def test_a_process_that_is_gone() -> None:
    with pytest.raises(OSError, match="No such file"):
        cpu_seconds(2**22 + 1)
