"""Runs a fuzzer in a child process, so that what crashes, hangs or eats memory is reported with its seed.

A fuzzer is a module of this package with ``play(rng)``: one case, made from ``rng`` alone. It raises if something else
came out than what the module promises. Case N of a run depends on the seed and N only: the report names both, and
``SEED=... FUZZ_CASE=N`` plays just that one.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import budget

ROOT = Path(__file__).parents[2]
MEMORY = 3 << 30  # bytes of address space: what asks for more fails
HANGS_AFTER_S = 60
FEWEST = 20  # cases, however slow the machine is


def fuzz(name: str, default_s: float) -> int:
    """Runs cases of ``tests.fuzz.<name>`` for the budgeted time and returns their number.

    An AssertionError names the case that failed, and how to repeat it.
    """
    seed, limit = budget.seed(), budget.seconds(default_s)
    only = os.environ.get("FUZZ_CASE", "")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "case"
        place.write_text("0")
        command = [sys.executable, "-m", "tests.fuzz.runner", name, str(seed), str(limit), str(place), only]
        environment = {**os.environ, "TMPDIR": directory, "PYTHONFAULTHANDLER": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
        case = int(place.read_text())
    if done.returncode:
        raise AssertionError(
            f"{name}: case {case} ended with {done.returncode}; repeat it with SEED={seed} FUZZ_CASE={case}\n"
            f"{done.stderr}"
        )
    print(f"{name}: {case:,} cases")  # noqa: T201
    return case


def _play(name: str, seed: int, limit_s: float, place: Path, only: str) -> None:
    play = importlib.import_module(f"tests.fuzz.{name}").play
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    file = os.open(place, os.O_WRONLY)
    deadline = time.monotonic() + limit_s
    case = int(only or 1)
    while True:
        os.pwrite(file, b"%-20d" % case, 0)
        signal.alarm(HANGS_AFTER_S)
        play(random.Random(f"{seed}/{case}"))
        if only or (case >= FEWEST and time.monotonic() > deadline):
            return
        case += 1


if __name__ == "__main__":
    _play(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
