"""`make faults SEED=... MINUTES=...` runs these as long as you like; otherwise shortly, with a new seed each time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.embedded import EmbeddedPostgres
from registry.migration import migrate
from tests.doubles.proxy import PostgresProxy
from tests.faults.oracle import Oracle
from tests.fixtures.databases import SERVER_SETTINGS

pytestmark = pytest.mark.slow

SHORT_S = 12.0


@pytest.fixture
def seed() -> str:
    chosen = os.environ.get("SEED") or str(random.randrange(1_000_000))
    print(f"SEED={chosen}")  # noqa: T201
    return chosen


@pytest.fixture
def seconds() -> float:
    return float(os.environ.get("MINUTES", "0")) * 60 or SHORT_S


@pytest.fixture
def own_server(scratch: Path) -> Iterator[EmbeddedPostgres]:
    """To be killed: with fsync, or a crash could lose what was acknowledged."""
    directory = scratch / f"server-{random.randrange(1 << 30)}"
    with EmbeddedPostgres(directory, settings={**SERVER_SETTINGS, "wal_sender_timeout": "5s"}) as server:
        migrate(server.url("postgres"))
        yield server


async def test_postgres(own_server: EmbeddedPostgres, tmp_path: Path, seed: str, seconds: float) -> None:
    url = own_server.url("postgres")
    troubles = {"kill": 4, "stop": 2, "freeze": 1, "server": 2, "cut": 3, "deaf": 2, "slot": 2, "rest": 2}
    async with PostgresProxy("127.0.0.1", own_server.port) as proxy:
        oracle = Oracle(url, proxy.url(url), tmp_path, seed, troubles)
        oracle.server, oracle.proxy = own_server, proxy
        await oracle.run(seconds)


async def test_sqlite(sqlite_url: str, tmp_path: Path, seed: str, seconds: float) -> None:
    oracle = Oracle(sqlite_url, sqlite_url, tmp_path, seed, {"kill": 4, "stop": 2, "freeze": 1, "rest": 2})
    await oracle.run(seconds)
