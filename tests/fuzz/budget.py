"""How long a fuzzer runs, and from which seed: `make fuzz MINUTES=... SEED=...` runs long, `make test` shortly."""

from __future__ import annotations

import os
import random


def seconds(default: float) -> float:
    """``FUZZ_SECONDS`` of the environment for each fuzzer, or the default."""
    return float(os.environ.get("FUZZ_SECONDS") or default)


def seed() -> int:
    """``SEED`` of the environment, or a new one. It is printed, so that a failure can be repeated."""
    chosen = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={chosen}")  # noqa: T201  (shown when it fails)
    return chosen
