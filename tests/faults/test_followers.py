"""A leader and two followers, over Kafka and MQTT, while daemons, brokers and topics fail at random.

Run by `make faults SEED=... MINUTES=...`, with a new seed each time; it takes too long for `make test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.embedded_postgres import EmbeddedPostgres
from tests.doubles.proxy import PostgresProxy
from tests.faults.follower_oracle import Brokers, FollowerOracle
from tests.fixtures.kafka import MakeKafka
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.long

SHORT_S = 25.0


async def test_postgres(
    own_server: EmbeddedPostgres,
    make_kafka: MakeKafka,
    own_mosquitto: Mosquitto,
    tmp_path: Path,
    seed: str,
    seconds: float,
) -> None:
    url = own_server.url("postgres")
    async with (
        PostgresProxy("127.0.0.1", own_server.port) as proxy,
        Brokers.start(make_kafka, own_mosquitto) as brokers,
    ):
        oracle = FollowerOracle(url, proxy.url(url), tmp_path, seed, brokers)
        oracle.server, oracle.proxy = own_server, proxy
        oracle.troubles |= {"server": 1, "cut": 1, "slot": 2}
        await oracle.run(seconds)


async def test_sqlite(
    sqlite_url: str, make_kafka: MakeKafka, own_mosquitto: Mosquitto, tmp_path: Path, seed: str, seconds: float
) -> None:
    async with Brokers.start(make_kafka, own_mosquitto) as brokers:
        await FollowerOracle(sqlite_url, sqlite_url, tmp_path, seed, brokers).run(seconds)
