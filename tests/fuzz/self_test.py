"""A fuzzer that fails on purpose; `test_runner` checks that it is reported."""

from __future__ import annotations

import ctypes
import os
import random


def play(rng: random.Random) -> None:
    if rng.random() < 0.2:
        match os.environ["FUZZ_SELF_TEST"]:
            case "segfault":
                ctypes.string_at(0)
            case "memory":
                bytearray(8 << 30)
            case "error":
                raise ValueError("a foreign error")
