"""Every engine reads exactly the acknowledged rows, however often the daemon was killed.

Short in `make test`; `make faults MINUTES=... SEED=...` runs it longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from astha.subscribers.context import LakeSettings
from tests.e2e.engines import S3_JARS, Spark, read_with_duckdb, s3_files, s3_settings
from tests.e2e.run import LakeRun
from tests.integration.astha.processes import drop_slots
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow
"""The other half of databases and storages is run by `make faults`, for the time that CI has."""

SHORT_S = 25.0


@pytest.fixture(scope="module")
def spark(scratch: Path) -> Iterator[Spark]:
    """Starts while the writers run."""
    with closing(Spark(scratch)) as made:
        yield made


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
            eventually_now(lambda: drop_slots(connection), "the slot is free")


@pytest.fixture
def s3_spark(s3_lake: LakeSettings, tmp_path: Path) -> Iterator[Spark]:
    with closing(Spark(tmp_path, s3_settings(s3_lake.s3), *S3_JARS)) as made:
        yield made


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
async def test_on_disk(
    make_run: Callable[[LakeSettings], LakeRun], lake: LakeSettings, seconds: float, spark: Spark
) -> None:
    run = make_run(lake)
    await run.run_with_kills(seconds)
    assert run.expected_rows.acknowledged["insert"] > 20
    await run.settle({"DuckDB": read_with_duckdb, "Spark": spark.read})


@pytest.mark.parametrize("backend", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"], indirect=True)
async def test_on_s3(
    make_run: Callable[[LakeSettings], LakeRun], s3_lake: LakeSettings, seconds: float, s3_spark: Spark
) -> None:
    run = make_run(s3_lake)
    await run.run_with_kills(seconds)
    assert run.expected_rows.acknowledged["insert"] > 20
    await run.settle({"DuckDB": partial(read_with_duckdb, files=s3_files(s3_lake.s3)), "Spark": s3_spark.read})
