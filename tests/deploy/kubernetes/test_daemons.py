"""The commands, settings and probes of `ha`, and of the catalog in `split`, on a real PostgreSQL: pods as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astha.client import Client, NoDaemon, Refused
from registry.embedded_postgres import free_port
from tests.deploy.kubernetes.workloads import Workload, workloads
from tests.integration.astha.processes import Astha, Daemon, postgres_registry
from tests.waiting import eventually_now

__all__ = ["postgres_registry"]  # a fixture

pytestmark = pytest.mark.slow

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


class Pods:
    def __init__(self, workload: Workload, directory: Path, url: str) -> None:
        self.workload = workload
        self._astha = Astha(directory, url, {})
        self._directory = directory
        self.url = url

    def environment(self, name: str) -> dict[str, str]:
        """Returns the variables of a pod, with directories, a port and the registry of this machine."""
        directory = self._directory / name
        run = directory / "run"
        run.mkdir(parents=True)
        return {
            **self.workload.environment(directory),
            "ASTHA_REGISTRY__URL": self.url,
            "ASTHA_SERVER__PORT": str(free_port()),
            "ASTHA_LEASE__DIRECTORY": str(run),
        }

    def initialized(self, name: str) -> int:
        """Runs the init container, and returns its exit code."""
        [container] = self.workload.pod["initContainers"]
        command, *arguments = container["command"]
        environment = {**self._astha.environment, **self.environment(name)}
        environment.pop("ASTHA_REGISTRY")
        return subprocess.run(
            [Path(sys.executable).with_name(command), *arguments], env=environment, check=False, timeout=60
        ).returncode

    def start(self, name: str) -> Daemon:
        assert self.workload.pod["containers"][0]["command"] == ["astha", "run"]
        return self._astha.run(environment=self.environment(name))

    def passes(self, url: str, probe: str) -> bool:
        """Whether the daemon passes the probe, which has no token."""
        try:
            Client(url, None).get(self.workload.pod["containers"][0][probe]["httpGet"]["path"])
        except (NoDaemon, Refused):
            return False
        return True

    def close(self) -> None:
        for daemon in self._astha.started:
            daemon.close()


@pytest.fixture
def pods(postgres_registry: str, tmp_path: Path) -> Iterator[Pods]:
    [workload] = workloads("ha")
    found = Pods(workload, tmp_path, postgres_registry)
    yield found
    found.close()


def test_leader_and_standby_pass_their_probes_and_hand_over(pods: Pods) -> None:
    assert pods.initialized("init") == 0
    one = pods.start("one")
    one.until_ready()
    two = pods.start("two")
    two.logged("standing by")
    for daemon in (one, two):
        for probe in PROBES:
            eventually_now(lambda daemon=daemon, probe=probe: pods.passes(daemon.url, probe), probe, 60)  # type: ignore[misc]
    with pytest.raises(Refused):
        Client(two.url, None).get("/readyz")  # the plain one is for the leader
    one.send(signal.SIGTERM)
    two.until_ready()
    assert one.ended() == 0
    assert pods.passes(two.url, "readinessProbe")


def test_the_catalog_passes_its_probes_and_stops(postgres_registry: str, tmp_path: Path) -> None:
    [workload] = [each for each in workloads("split") if each.name == "astha-catalog"]
    pods, port = Pods(workload, tmp_path, postgres_registry), free_port()
    command, *arguments = workload.pod["containers"][0]["command"]
    environment = {**environment_of_tests(), **pods.environment("catalog"), "ASTHA_CATALOG__PORT": str(port)}
    process = subprocess.Popen([Path(sys.executable).with_name(command), *arguments], env=environment, cwd=tmp_path)
    try:
        for probe in PROBES:
            eventually_now(lambda probe=probe: pods.passes(f"http://127.0.0.1:{port}", probe), probe, 60)  # type: ignore[misc]
        with pytest.raises(Refused):
            Client(f"http://127.0.0.1:{port}", None).get("/v1/namespaces")  # needs the token
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_the_verification_of_an_empty_registry(postgres_registry: str, tmp_path: Path) -> None:
    [workload] = [each for each in workloads("ha-monitored") if each.name == "astha-verify"]
    pods = Pods(workload, tmp_path, postgres_registry)
    command, *arguments = workload.pod["containers"][0]["command"]
    done = subprocess.run(
        [Path(sys.executable).with_name(command), *arguments],
        env={**environment_of_tests(), **pods.environment("verify")},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def environment_of_tests() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
