"""Rows that were acknowledged are the rows that every engine reads, whatever happened to the daemon in between.

Shortly in `make test`; `make faults MINUTES=... SEED=...` for longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from astha.subscribers.surroundings import LakeSettings
from tests.e2e.engines import Spark, read_with_duckdb
from tests.e2e.run import LakeRun
from tests.integration.astha.processes import _drop_slots
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow

SHORT_S = 30.0


@pytest.fixture(scope="module")
def spark(scratch: Path) -> Iterator[Spark]:
    """Starts while the writers write."""
    with closing(Spark(scratch)) as made:
        yield made


@pytest.fixture
def seed() -> str:
    chosen = os.environ.get("SEED") or str(random.randrange(1_000_000))
    print(f"SEED={chosen}")  # noqa: T201
    return chosen


@pytest.fixture
def seconds() -> float:
    return float(os.environ.get("MINUTES", "0")) * 60 or SHORT_S


@pytest.fixture
def make_run(url: str, tmp_path: Path, seed: str) -> Iterator[Callable[[LakeSettings], LakeRun]]:
    with ExitStack() as stack:

        def make(lake: LakeSettings) -> LakeRun:
            run = LakeRun(url, lake, tmp_path, seed)
            stack.callback(run.close)
            return run

        yield make
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: _drop_slots(connection), "the slot is free")


async def test_on_disk(
    make_run: Callable[[LakeSettings], LakeRun], lake: LakeSettings, seconds: float, spark: Spark
) -> None:
    run = make_run(lake)
    await run.disturb(seconds)
    assert run.kills > 1
    assert run.book.acknowledged["insert"] > 20
    await run.settle({"DuckDB": read_with_duckdb, "Spark": spark.read})
