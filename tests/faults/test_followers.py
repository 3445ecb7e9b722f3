"""A leader and two followers, over Kafka and MQTT, while daemons, brokers and topics fail at random.

Run by `make faults SEED=... MINUTES=...`, with a new seed each time. Not part of `make test`: seed 565853 on PostgreSQL
found a Kafka follower that stayed behind after the last fault (docs/guarantees.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.embedded_postgres import EmbeddedPostgres
from tests.doubles.proxy import PostgresProxy
from tests.faults.follower_oracle import FollowerOracle
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.long

SHORT_S = 25.0


async def test_postgres(
    own_server: EmbeddedPostgres,
    own_kafka: KafkaBroker,
    own_mosquitto: Mosquitto,
    tmp_path: Path,
    seed: str,
    seconds: float,
) -> None:
    url = own_server.url("postgres")
    async with PostgresProxy("127.0.0.1", own_server.port) as proxy:
        oracle = FollowerOracle(url, proxy.url(url), tmp_path, seed, own_kafka, own_mosquitto)
        oracle.server, oracle.proxy = own_server, proxy
        oracle.troubles |= {"server": 1, "cut": 1, "slot": 2}
        await oracle.run(seconds)


async def test_sqlite(
    sqlite_url: str, own_kafka: KafkaBroker, own_mosquitto: Mosquitto, tmp_path: Path, seed: str, seconds: float
) -> None:
    oracle = FollowerOracle(sqlite_url, sqlite_url, tmp_path, seed, own_kafka, own_mosquitto)
    await oracle.run(seconds)
