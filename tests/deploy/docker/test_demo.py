"""The demo as processes: every service of ours, Prometheus and Mosquitto with the command lines, settings, mounts and
health checks of compose.yaml, over real servers instead of images.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from registry.embedded_postgres import EmbeddedPostgres, free_port
from tests.deploy.docker.demo_files import services
from tests.deploy.docker.service_processes import ServiceProcesses
from tests.fixtures.databases import SERVER_SETTINGS
from tests.fixtures.servers import ask
from tests.integration.astha.processes import Daemon
from tests.servers.kafka import KafkaBroker
from tests.servers.packages import Program, find_program
from tests.servers.process import Server, ServerProcess
from tests.servers.prometheus import fetch_json
from tests.servers.s3 import S3Server
from tests.waiting import eventually_now

pytestmark = pytest.mark.long

ROUNDS = 6  # one more than the fewest small files that are merged
SETTLE_S = 300.0
START_S = 120.0
CONFIGURATION = "/mosquitto/config/mosquitto.conf"
PORTS = {"leader": 27840, "follower": 27840, "catalog": 27841, "mosquitto": 1883, "prometheus": 9090}
OF_THE_MACHINE = frozenset(
    {"listeners", "advertised.listeners", "log.dirs", "controller.quorum.voters", "listener.security.protocol.map"}
)


class ServiceServer(Server):
    """A service of another project, whose program this machine has. It is ready when it is healthy."""

    def __init__(self, demo: ServiceProcesses, name: str, program: Program, *arguments: str) -> None:
        self._demo, self._name, self._program, self._arguments = demo, name, program, arguments
        self._process = ServerProcess(name, demo.work(name) / "log")

    def start(self) -> None:
        command = [str(self._program.path), *self._arguments]
        self._process.start(command, self._program.environment, lambda: self._demo.healthy(self._name), START_S)


def postgres_settings() -> dict[str, str]:
    command: list[str] = services()["postgres"]["command"]
    assert command[0] == "postgres"
    assert set(command[1::2]) == {"-c"}
    return dict(setting.split("=", 1) for setting in command[2::2])


def kafka_settings() -> dict[str, str]:
    """As the image makes them of the variables."""
    given = services()["kafka"]["environment"]
    named = {name[6:].lower().replace("_", "."): value for name, value in given.items() if name.startswith("KAFKA_")}
    return {name: value for name, value in named.items() if name not in OF_THE_MACHINE | {"heap.opts"}}


def create_registry(server: EmbeddedPostgres, demo: ServiceProcesses) -> None:
    """Does what the image does with its variables: a superuser with the password of the file, and a database."""
    given = services()["postgres"]["environment"]
    password = demo.file("postgres", given["POSTGRES_PASSWORD_FILE"]).read_text()
    user, database = given["POSTGRES_USER"], given["POSTGRES_DB"]
    ask(server, f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{password}'")
    ask(server, f"CREATE DATABASE {database} OWNER {user}")
    access = server.data / "pg_hba.conf"
    access.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
    ask(server, "SELECT pg_reload_conf()")


def mosquitto(demo: ServiceProcesses) -> ServiceServer:
    root = "user root\n" if os.geteuid() == 0 else ""  # otherwise it becomes a user who can't read these files
    demo.rewrite("mosquitto", CONFIGURATION, root)
    program = find_program("mosquitto", "mosquitto")
    return ServiceServer(demo, "mosquitto", program, "-c", str(demo.file("mosquitto", CONFIGURATION)))


def prometheus(demo: ServiceProcesses, port: int) -> ServiceServer:
    demo.rewrite("prometheus", "/etc/prometheus/prometheus.yml")
    program = find_program("prometheus", "prometheus")
    address = f"--web.listen-address=127.0.0.1:{port}"
    return ServiceServer(demo, "prometheus", program, *demo.command("prometheus"), address)


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in PORTS}


@pytest.fixture
def demo(tmp_path: Path, ports: dict[str, int]) -> Iterator[ServiceProcesses]:
    """All but the daemons: secrets are made, servers are healthy, the schema is current."""
    with ExitStack() as stack:
        ServiceProcesses(tmp_path).run("secrets")
        keys = [(tmp_path / "volumes/secrets-s3" / name).read_text() for name in ("access_key", "secret_key")]
        s3 = stack.enter_context(S3Server(tmp_path / "s3-server", (keys[0], keys[1])))
        s3.create_bucket("lake")
        kafka = stack.enter_context(KafkaBroker(tmp_path / "kafka", settings=kafka_settings()))
        postgres = stack.enter_context(EmbeddedPostgres(settings={**SERVER_SETTINGS, **postgres_settings()}))
        addresses = {
            **{f"{name}:{port}": f"127.0.0.1:{ports[name]}" for name, port in PORTS.items()},
            **{f"{host}:9090": f"127.0.0.1:{ports['prometheus']}" for host in ("127.0.0.1", "localhost")},
            "listener 1883": f"listener {ports['mosquitto']}",
            "kafka:9092": kafka.address,
            "s3:7070": s3.endpoint.removeprefix("http://"),
            "postgres/registry": f"127.0.0.1:{postgres.port}/registry",
        }
        (tmp_path / "mosquitto_sub").write_text(f"-p {ports['mosquitto']}\n")
        variables = {
            "postgres": {"PGPORT": str(postgres.port)},
            "mosquitto": {"XDG_CONFIG_HOME": str(tmp_path)},  # the health check's options
            "leader": {"ASTHA_SERVER__PORT": str(ports["leader"])},
            "follower": {"ASTHA_SERVER__PORT": str(ports["follower"])},
            "catalog": {"ASTHA_CATALOG__PORT": str(ports["catalog"])},
        }
        demo = ServiceProcesses(tmp_path, addresses, variables)
        create_registry(postgres, demo)
        assert demo.healthy("postgres")
        demo.rewrite("leader", "/run/secrets/astha.yaml")
        for name in ("leader", "follower"):
            demo.rewrite(name, f"/etc/astha/{name}.yaml")
        stack.enter_context(mosquitto(demo))
        demo.run("migrate")
        yield demo


@pytest.fixture
def daemons(demo: ServiceProcesses) -> Iterator[dict[str, Daemon]]:
    """The leader, then those that wait until it is healthy."""
    with ExitStack() as stack:
        started: dict[str, Daemon] = {}
        for name in ("leader", "follower", "catalog"):
            started[name] = daemon = Daemon(demo.start(name))
            stack.callback(daemon.close)
            eventually_now(lambda: demo.healthy(name) or daemon.process.poll() is not None, name, SETTLE_S)  # noqa: B023
            assert daemon.process.poll() is None, daemon.lines[-20:]
        yield started


def test_the_demo(demo: ServiceProcesses, daemons: dict[str, Daemon], ports: dict[str, int]) -> None:
    for name in ("leader", "follower"):
        daemons[name].until_ready()
    demo.run("demo", DEMO_ROUNDS=str(ROUNDS), DEMO_PERIOD_S="0")

    def compacted() -> bool:
        for daemon in daemons.values():
            assert daemon.process.poll() is None, daemon.lines[-20:]
        return '"done"' in demo.execute("leader", "compaction", "list", "demo.readings", "--json").stdout

    eventually_now(compacted, "the follower has compacted the demo's table", SETTLE_S)
    verified = demo.execute("leader", "verify", "--files")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    consumed = demo.execute("leader", "consume", "demo_readings")
    assert consumed.stdout.count('"sensor"') == 3 * ROUNDS, consumed.stderr
    everything = demo.execute("leader", "status", "--all")
    for component in ("kafka_sink", "kafka_transactions", "mqtt_sink", "compactor", "iceberg_updater"):
        assert component in everything.stdout

    token = demo.file("prometheus", "/run/secrets/read_token").read_text()
    loaded = fetch_json(f"127.0.0.1:{ports['catalog']}", "/v1/namespaces/demo/tables/readings", token)
    assert loaded["metadata"]["location"] == "s3://lake/warehouse/demo/readings"
    with prometheus(demo, ports["prometheus"]):
        eventually_now(lambda: scraped(ports["prometheus"]) == {
            ("astha", "1"), ("astha-catalog", "1"), ("prometheus", "1"),
        }, "all targets up", START_S)  # fmt: skip
    for daemon in reversed(daemons.values()):
        daemon.send(signal.SIGTERM)
        assert daemon.ended() == 0


def scraped(port: int) -> set[tuple[str, str]]:
    """Returns job and state of the targets: "1" if they are up."""
    found: dict[str, Any] = fetch_json(f"127.0.0.1:{port}", "/api/v1/query?query=up")
    return {(each["metric"]["job"], each["value"][1]) for each in found["data"]["result"]}
