"""`/readyz` of a follower as a process, while its broker is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from astha.client import Refused
from tests.integration.astha.processes import AUDIT, TOKEN, Astha, Daemon, add_topic
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow

_WITHIN_S = 120.0
_OUTAGE: dict[str, dict[str, Any]] = {
    "kafka": {
        "outage_tolerance_s": 0,
        "connect_timeout_s": 1.0,
        "acknowledge_timeout_s": 2.0,
        "request_timeout_s": 1.0,
    },
    "mqtt": {"timeout_s": 2.0},
}


class Pair:
    """A leader with one sink, and a follower with the component `audit`."""

    def __init__(self, url: str, directory: Path, transport: str, broker: KafkaBroker | Mosquitto) -> None:
        settings: dict[str, Any] = {"prefix": "ready", "heartbeat_s": 0.1, **_OUTAGE[transport]}
        if isinstance(broker, KafkaBroker):
            settings |= {"bootstrap_servers": broker.address, "layout": "transactions"}
            stream = f"kafka://{broker.address}/ready.transactions"
        else:
            settings |= {"url": broker.url, "changes": False}
            stream = f"{broker.url}/ready"
        policy = {"breaker_reset_s": 0.5, "health_interval_s": 0.5}
        sink = {"tables": ["topics"], "settings": settings, "lane": policy}
        audit = {"use": "acme_audit:create", "tables": ["topics"], "settings": {"path": f"{directory}/audit.log"}}
        self.leader = self._command(url, directory / "leader", {f"{transport}_sink": sink}, {})
        source = {"ASTHA_GROUP": "remote", "ASTHA_SOURCE__URL": stream, "ASTHA_SERVER__STALL_AFTER_S": "5"}
        self.follower = self._command(url, directory, {"audit": audit}, source)

    def _command(self, url: str, directory: Path, components: dict[str, Any], environment: dict[str, str]) -> Astha:
        directory.mkdir(exist_ok=True)
        (directory / "acme_audit.py").write_text(AUDIT)
        (directory / "subscriptions.yaml").write_text(yaml.safe_dump({"components": components}))
        common = {"ASTHA_SERVER__TOKEN": TOKEN, "ASTHA_LEASE__TTL_S": "2"}
        return Astha(directory, url, {**common, **environment})


@pytest.fixture(params=["kafka", "mqtt"])
def broker(request: pytest.FixtureRequest) -> KafkaBroker | Mosquitto:
    found: KafkaBroker | Mosquitto = request.getfixturevalue(
        "own_kafka" if request.param == "kafka" else "own_mosquitto"
    )
    return found


@pytest.fixture
def pair(sqlite_url: str, tmp_path: Path, broker: KafkaBroker | Mosquitto) -> Iterator[Pair]:
    transport = "kafka" if isinstance(broker, KafkaBroker) else "mqtt"
    made = Pair(sqlite_url, tmp_path, transport, broker)
    with ExitStack() as stack:
        for command in (made.leader, made.follower):
            stack.callback(_close, command)
        yield made


def _close(command: Astha) -> None:
    for daemon in command.started:
        daemon.close()


def why_not_ready(daemon: Daemon) -> str:
    try:
        daemon.client(TOKEN).get("/readyz")
    except Refused as refused:
        return str(refused)
    return ""


def test_a_follower_is_not_ready_without_its_broker_and_again_with_it(
    pair: Pair, broker: KafkaBroker | Mosquitto
) -> None:
    leader, follower = pair.leader.run(), pair.follower.run()
    leader.until_ready()
    follower.until_ready()
    broker.kill()
    eventually_now(lambda: "source is" in why_not_ready(follower), "a follower that is not ready", _WITHIN_S)
    assert follower.client(TOKEN).get("/livez")["alive"] is True
    add_topic(pair.leader.url, "meanwhile")
    broker.start()
    eventually_now(lambda: not why_not_ready(follower), "a follower that is ready", _WITHIN_S)
    eventually_now(
        lambda: any("meanwhile" in line for line in pair.follower.audited()), "what was committed meanwhile", _WITHIN_S
    )
    add_topic(pair.leader.url, "later")
    eventually_now(lambda: any("later" in line for line in pair.follower.audited()), "a later commit", _WITHIN_S)
