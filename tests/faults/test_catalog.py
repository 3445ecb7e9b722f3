"""Engines write through the catalog beside our own inserts, while catalogs and daemon are killed.

`make faults MINUTES=... SEED=...` runs it longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from astha.subscribers.context import LakeSettings
from tests.faults.catalog_oracle import CatalogOracle
from tests.integration.astha.processes import drop_slots
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.waiting import eventually_now

pytestmark = pytest.mark.long
"""Also the short run: it starts six processes, for which CI has no time."""

SHORT_S = 30.0


@pytest.fixture
def catalogs() -> int:
    """Processes that serve the registry at the same time."""
    return 2


@pytest.fixture
def oracle(url: str, lake: LakeSettings, tmp_path: Path, seed: str, catalogs: int) -> Iterator[CatalogOracle]:
    made = CatalogOracle(url, lake, tmp_path, seed, catalogs)
    yield made
    made.close()
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


@pytest.mark.parametrize("catalogs", [1])
async def test_one_kill(oracle: CatalogOracle) -> None:
    await oracle.run_briefly(12)


async def test_pyiceberg_and_inserts(oracle: CatalogOracle, seconds: float) -> None:
    await oracle.run(seconds)


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")  # by PyIceberg, which rewrites the files
async def test_with_spark(oracle: CatalogOracle, seconds: float, tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start(uri: str) -> Spark:
            return stack.enter_context(Spark(tmp_path, {"type": "rest", "uri": uri}))

        await oracle.run(seconds, spark=start)
