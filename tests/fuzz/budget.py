"""Duration and seed of a fuzzer: long with `make fuzz MINUTES=... SEED=...`, two seconds in `make test`."""

from __future__ import annotations

import os
import random


def seconds(default: float) -> float:
    """Returns ``FUZZ_SECONDS`` of the environment, or the default."""
    return float(os.environ.get("FUZZ_SECONDS") or default)


def seed() -> int:
    """Returns ``SEED`` of the environment, or a new one, and prints it so that a failure can be repeated."""
    chosen = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={chosen}")  # noqa: T201  (shown when it fails)
    return chosen
