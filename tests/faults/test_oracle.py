"""`make faults SEED=... MINUTES=...` runs these as long as you like; otherwise shortly, with a new seed each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.embedded_postgres import EmbeddedPostgres
from registry.stores.dynamodb.opening import create
from tests.doubles.proxy import PostgresProxy, TcpProxy
from tests.faults.dynamodb_oracle import DynamoOracle
from tests.faults.oracle import Oracle
from tests.servers.dynamodb import DynamoServer

pytestmark = pytest.mark.slow

SHORT_S = 12.0
DYNAMODB_S = 45.0
"""DynamoDB Local needs some 50 ms for a commit, and seconds to start."""


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


@pytest.mark.long
async def test_dynamodb(tmp_path: Path, seed: str, seconds: float) -> None:
    troubles = {"kill": 4, "stop": 2, "freeze": 1, "server": 2, "cut": 3, "deaf": 2, "rest": 2}
    with DynamoServer(tmp_path / "server") as server:
        await create(server.url("oracle"))
        async with TcpProxy("127.0.0.1", server.port) as proxy:
            oracle = DynamoOracle(server, proxy, "oracle", tmp_path, seed, troubles)
            oracle.certain = ["kill", "server"]
            await oracle.run(max(seconds, DYNAMODB_S), pause_s=0.05, rest_s=8.0)
