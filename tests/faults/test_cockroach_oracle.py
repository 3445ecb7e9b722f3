"""The oracle on the cluster of `make cockroach`; MINUTES=... and SEED=... as for `make faults`.

The daemon is killed, stopped and frozen, and its changefeed is cut and silenced. The cluster belongs to the caller, and
is left alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.doubles.proxy import PostgresProxy
from tests.faults.oracle import Oracle

pytestmark = pytest.mark.long

SHORT_S = 30.0
LEASE_S = 10.0  # renewing one is several round trips, to a cluster that may be far away


async def test_cockroach(cockroach_url: str, tmp_path: Path, seed: str, seconds: float) -> None:
    url = make_url(cockroach_url)
    assert url.host is not None
    troubles = {"kill": 5, "stop": 2, "freeze": 1, "cut": 3, "deaf": 1, "rest": 2}
    async with PostgresProxy(url.host, url.port or 26257) as proxy:
        oracle = Oracle(cockroach_url, proxy.url(cockroach_url), tmp_path, seed, troubles, LEASE_S)
        oracle.proxy = proxy
        oracle.certain = ["kill", "kill", "cut"]
        await oracle.run(seconds)
