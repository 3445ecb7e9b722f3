"""The units and the installer on a machine that systemd boots. The tests are one story, and run in this order."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.bundle import make_bundle, pin_requirements
from registry.embedded_postgres import free_port
from registry.revisions import newest_revision
from tests.deploy.systemd import inside
from tests.deploy.systemd.bundle import build_version, wheels_of
from tests.deploy.systemd.inside.recorder import ALLOWED, FORBIDDEN
from tests.deploy.systemd.machine import Machine
from tests.integration.operations.next_version import EXPANDING, NOTHING
from tests.servers.jars import java
from tests.servers.mosquitto import Mosquitto, MosquittoOptions
from tests.waiting import eventually_now

pytestmark = pytest.mark.long

UNIT = "astha.service"
URL = "sqlite:////var/lib/astha/registry.db"
TOKEN = "a-token-that-only-the-service-knows"
FOLLOWER = "astha@reports.service"
VERIFY = "astha-verify.service"
RECEIVED = "/var/lib/astha/received"
FOLLOWED = "/var/lib/astha/followed"
BROKER_PASSWORD = "only for the broker"
PORT, SECOND_PORT, FOLLOWER_PORT = (free_port() for _ in range(3))  # of this machine, whose network the other shares
DEADLINE_S = 120.0
HEAD = newest_revision()
COMPATIBLE, INCOMPATIBLE = (HEAD, EXPANDING), (None, NOTHING)
"""Migrations of later versions: this version can use the first one's schema, and not the second one's."""


class Service:
    """Astha on the machine, as an operator uses it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def installer(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.machine.run("/bundle/systemd/installer.py", *arguments, check=check)

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        done = self.machine.run("systemctl", *arguments, check=False)
        assert done.returncode == 0 or not check, f"{arguments}: {done.stderr}{self.journal(arguments[-1])[-2_000:]}"
        return done.stdout.strip()

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.systemctl("show", "--value", "-p", name, unit)

    def journal(self, unit: str = UNIT) -> str:
        return self.machine.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout

    def create_topics(self, *names: str) -> None:
        command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--uid=astha"]
        self.machine.run(*command, "/opt/astha/current/bin/python", "/bundle/inside/create_topics.py", URL, *names)

    def received(self, path: str = RECEIVED) -> list[str]:
        return [str(record["topic"]) for record in self.records(path)]

    def records(self, path: str = RECEIVED) -> list[dict[str, object]]:
        text = self.machine.run("cat", path, check=False).stdout
        return [json.loads(line) for line in text.splitlines()]

    def delivers(self, name: str, path: str = RECEIVED) -> None:
        """A row that is committed now reaches the component."""
        self.create_topics(name)
        eventually_now(lambda: name in self.received(path), f"{name} is delivered", DEADLINE_S)

    def schema(self) -> tuple[str, str]:
        """Returns the state of the schema for the current version, and its revision."""
        found = json.loads(self.installer("run", "--", "registry", "status", "--json", check=False).stdout)
        return found["state"], found["found"]

    def wait_for_status(self, start: str, unit: str = UNIT) -> None:
        eventually_now(
            lambda: self.show("StatusText", unit).startswith(start) and self.show("ActiveState", unit) == "active",
            f"{unit}: {start}", DEADLINE_S,
        )  # fmt: skip

    def drop_in(self, name: str, text: str, unit: str = UNIT) -> None:
        self.machine.write(f"/etc/systemd/system/{unit}.d/{name}.conf", f"[Service]\n{text}\n")
        self.systemctl("daemon-reload")

    def remove_drop_in(self, name: str, unit: str = UNIT) -> None:
        self.machine.run("rm", "-f", f"/etc/systemd/system/{unit}.d/{name}.conf")
        self.systemctl("daemon-reload")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make bundle` makes, unpacked, and wheels of later versions."""
    scratch = tmp_path_factory.mktemp("bundle")
    archive = make_bundle(scratch / "dist", ["mqtt"])
    with tarfile.open(archive) as tar:
        tar.extractall(scratch / "unpacked", filter="data")
    (directory,) = (scratch / "unpacked").iterdir()
    build_version("0.2.0", directory)
    build_version("0.3.0", directory, revisions={"next": COMPATIBLE}, broken=True)
    build_version("0.4.0", directory, revisions={"next": COMPATIBLE})
    build_version("0.5.0", directory, revisions={"next": COMPATIBLE, "then": INCOMPATIBLE}, broken=True)
    build_version("0.6.0", directory, revisions={"next": COMPATIBLE, "then": INCOMPATIBLE})
    pin_requirements(directory / "requirements-lake.txt", ["lake", "mqtt"])
    (directory / "wheels").mkdir()
    (directory / "inside").mkdir()
    directory.chmod(0o755)  # the service's user reads it
    return directory


@pytest.fixture(scope="module")
def machine(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    mounts = {
        "/bundle": bundle,
        "/bundle/wheels": wheels_of(bundle / "requirements-lake.txt"),
        "/bundle/inside": Path(inside.__file__).parent,
        "/java": Path(java()).resolve().parents[1],
    }
    for place in mounts.values():
        assert place.is_dir()
    with Machine(tmp_path_factory.mktemp("machine"), mounts) as machine:
        yield machine


@pytest.fixture(scope="module")
def service(machine: Machine) -> Service:
    """Installed and configured; a test starts it."""
    service = Service(machine)
    service.installer("install", *wheel("0.1.0"))
    machine.run("sh", "-c", f"echo 'server: {{port: {PORT}}}' >> /etc/astha/astha.yaml")
    machine.write("/etc/astha/environment", "PYTHONPATH=/bundle/inside\n")
    machine.write("/etc/astha/subscriptions.yaml", f"components:\n  {recorder(RECEIVED)}\n")
    machine.write("/etc/astha/credentials/registry.url", f"{URL}\n")
    machine.write("/etc/astha/credentials/server.token", f"{TOKEN}\n")
    service.installer("run", "--", "registry", "migrate")
    service.installer("run", "--", "check")
    return service


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    options = MosquittoOptions(passwords={"astha": BROKER_PASSWORD})
    with Mosquitto(tmp_path_factory.mktemp("broker"), options) as broker:
        yield broker


def recorder(path: str, name: str = "recorder") -> str:
    return f"{name}: {{use: 'recorder:create', tables: [topics], settings: {{path: {path}}}}}"


def wheel(version: str, requirements: str = "requirements.txt") -> list[str]:
    options = ["--requirements", f"/bundle/{requirements}", "--wheels", "/bundle/wheels"]
    return [f"/bundle/astha-{version}-py3-none-any.whl", *options]


def test_starts_and_is_ready(service: Service) -> None:
    service.systemctl("enable", "--now", UNIT)  # returns when READY=1 was sent
    assert service.show("ActiveState") == "active"
    service.wait_for_status("leading; components: 1 live")
    service.delivers("first")


def test_the_installers_run_uses_the_settings_and_credentials_of_the_service(service: Service) -> None:
    shown = service.installer("run", "--", "status", "--json").stdout
    assert "recorder" in shown
    service.installer("run", "--", "refresh", "recorder")  # needs the token
    plain = service.machine.run("runuser", "-u", "games", "--", "astha", "status", check=False)
    assert plain.returncode != 0


def test_after_kill_9_it_is_restarted_and_delivers(service: Service) -> None:
    before, pid = service.show("NRestarts"), service.show("MainPID")
    service.systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
    eventually_now(lambda: service.show("NRestarts") != before, "restarted", DEADLINE_S)
    service.wait_for_status("leading; components: 1 live")
    assert service.show("MainPID") != pid
    service.delivers("after-kill")


def test_after_kill_9_it_leads_without_waiting_for_its_lease(service: Service) -> None:
    """The lease is longer than any deadline of these tests."""
    service.drop_in("lease", "Environment=ASTHA_LEASE__TTL_S=3600")
    service.systemctl("restart", UNIT)
    service.wait_for_status("leading; components: 1 live")
    before = service.show("NRestarts")
    service.systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
    eventually_now(lambda: service.show("NRestarts") != before, "restarted", DEADLINE_S)
    service.wait_for_status("leading; components: 1 live")
    assert "its process has ended" in service.journal()
    service.remove_drop_in("lease")
    service.systemctl("restart", UNIT)
    service.delivers("after-kill-with-a-long-lease")


def test_a_hung_event_loop_is_ended_by_the_watchdog(service: Service) -> None:
    service.drop_in("watchdog", "WatchdogSec=4s")
    service.systemctl("restart", UNIT)
    service.wait_for_status("leading; components: 1 live")
    before = int(service.show("NRestarts"))
    service.create_topics("hang")
    eventually_now(lambda: int(service.show("NRestarts")) > before, "restarted", DEADLINE_S)
    eventually_now(lambda: "hang" in service.received(), "delivered after the restart", DEADLINE_S)
    journal = service.journal()
    assert "Watchdog timeout" in journal
    assert "recorder.py" in journal  # faulthandler shows where it hung
    service.remove_drop_in("watchdog")
    service.systemctl("restart", UNIT)
    service.delivers("after-hang")


def test_a_stopped_process_is_ended_by_the_watchdog(service: Service) -> None:
    service.drop_in("watchdog", "WatchdogSec=4s\nTimeoutAbortSec=2s")
    service.systemctl("restart", UNIT)
    service.wait_for_status("leading")
    before = int(service.show("NRestarts"))
    service.systemctl("kill", "--kill-whom=main", "--signal=STOP", UNIT)
    eventually_now(lambda: int(service.show("NRestarts")) > before, "restarted", DEADLINE_S)
    service.remove_drop_in("watchdog")
    service.systemctl("restart", UNIT)
    service.delivers("after-stop-signal")


def test_a_reload_reads_the_log_level_again(service: Service) -> None:
    service.machine.run("sh", "-c", "echo 'log: {level: debug}' >> /etc/astha/astha.yaml")
    service.systemctl("reload", UNIT)
    eventually_now(lambda: "log level reloaded" in service.journal(), "reloaded", DEADLINE_S)


def test_stopping_delivers_what_is_queued_and_exits_with_0(service: Service) -> None:
    service.create_topics("slow-1", "slow-2", "slow-3")
    eventually_now(lambda: "slow-1" in service.received(), "the first one is delivered", DEADLINE_S)
    service.systemctl("stop", UNIT)
    assert service.show("Result") == "success"
    assert service.show("ExecMainStatus") == "0"
    assert "Deactivated successfully" in "".join(service.journal().splitlines()[-2:])
    assert {"slow-1", "slow-2", "slow-3"} <= set(service.received())
    service.systemctl("start", UNIT)
    service.delivers("after-drain")


def test_a_wrong_setting_fails_once_with_the_reason_in_the_journal(service: Service) -> None:
    service.systemctl("stop", UNIT)
    service.drop_in("wrong", "Environment=ASTHA_LEASE__TTL_S=never")
    assert service.machine.run("systemctl", "start", UNIT, check=False).returncode != 0
    assert (service.show("ActiveState"), service.show("SubState")) == ("failed", "failed")
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("2", "0")
    assert "ASTHA_LEASE__TTL_S: lease.ttl_s: " in service.journal()
    service.remove_drop_in("wrong")
    service.systemctl("start", UNIT)
    service.delivers("after-wrong-setting")


def test_a_registry_that_is_not_reachable_is_tried_again(service: Service) -> None:
    service.systemctl("stop", UNIT)
    service.drop_in("gone", "Environment=ASTHA_REGISTRY__URL=postgresql://astha@127.0.0.1:1/nothing\nRestartSec=100ms")
    service.systemctl("start", "--no-block", UNIT)
    eventually_now(lambda: int(service.show("NRestarts")) >= 2, "tried again", DEADLINE_S)
    assert service.show("ExecMainStatus") in ("3", "0")  # 0 while the next try runs
    service.remove_drop_in("gone")
    service.systemctl("restart", UNIT)
    service.delivers("after-outage")


def test_of_two_units_one_stands_by_and_takes_over(service: Service) -> None:
    second = "astha-second.service"
    service.machine.run("cp", f"/usr/local/lib/systemd/system/{UNIT}", f"/etc/systemd/system/{second}")
    own = ["ASTHA_LEASE__DIRECTORY=%t/astha-2", f"ASTHA_SERVER__PORT={SECOND_PORT}"]
    service.drop_in("second", f"Environment={' '.join(own)}\nRuntimeDirectory=\nRuntimeDirectory=astha-2", second)
    service.systemctl("start", second)
    service.wait_for_status("standing by", second)
    assert service.show("StatusText").startswith("leading")
    service.drop_in("stays-away", "RestartSec=1h")  # a daemon that is restarted leads again at once
    service.systemctl("kill", "--signal=KILL", UNIT)
    service.wait_for_status("leading", second)
    service.delivers("by-the-second")
    service.remove_drop_in("stays-away")
    service.systemctl("restart", UNIT)
    service.wait_for_status("standing by")
    service.systemctl("stop", second)
    service.wait_for_status("leading")
    service.delivers("by-the-first")


def test_a_follower(service: Service, broker: Mosquitto) -> None:
    """It stays, and is upgraded with the daemon below. Both get the broker's password as a credential."""
    sink = f"mqtt_sink: {{tables: [topics], settings: {{url: '{broker.url}', user: astha}}}}"
    service.machine.write("/etc/astha/subscriptions.yaml", f"components:\n  {recorder(RECEIVED)}\n  {sink}\n")
    service.machine.write("/etc/astha/credentials/components.mqtt_sink.settings.password", BROKER_PASSWORD)
    service.machine.write("/etc/astha/credentials/source.mqtt.password", BROKER_PASSWORD)
    service.machine.write("/etc/astha/reports-subscriptions.yaml", f"components:\n  {recorder(FOLLOWED, 'reporter')}\n")
    service.machine.write(
        "/etc/astha/reports.yaml",
        "subscriptions: /etc/astha/reports-subscriptions.yaml\n"
        f"server: {{port: {FOLLOWER_PORT}}}\n"
        f"source: {{url: '{broker.url}/astha', mqtt: {{user: astha}}}}\n",
    )
    service.systemctl("restart", UNIT)
    service.wait_for_status("leading; components: 2 live")
    service.installer("run", "--group", "reports", "--", "check")
    service.systemctl("enable", "--now", FOLLOWER)
    service.wait_for_status("leading; components: 1 live", FOLLOWER)
    service.delivers("followed", FOLLOWED)
    assert BROKER_PASSWORD not in service.journal() + service.journal(FOLLOWER)


def test_credentials_are_unreadable_for_others(service: Service) -> None:
    names = service.machine.run("ls", f"/run/credentials/{UNIT}").stdout.split()
    assert {"astha_registry.url", "astha_server.token"} <= set(names)
    for path in (f"/run/credentials/{UNIT}/astha_server.token", "/etc/astha/credentials/server.token"):
        assert TOKEN in service.machine.run("cat", path).stdout
        assert service.machine.run("runuser", "-u", "games", "--", "cat", path, check=False).returncode != 0
    pid = service.show("MainPID")
    assert TOKEN not in service.machine.run("cat", f"/proc/{pid}/environ", f"/proc/{pid}/cmdline").stdout
    assert TOKEN not in service.journal()


def test_writes_outside_of_its_directories_are_refused(service: Service) -> None:
    service.delivers("write")
    (writes,) = (record["writes"] for record in service.records() if record["topic"] == "write")
    assert isinstance(writes, dict)
    assert {path for path in FORBIDDEN if writes[path] == "written"} == set()
    assert {path for path in ALLOWED if writes[path] != "written"} == set()
    outside = service.machine.run("find", "/tmp", "/var/tmp", "-maxdepth", "1", "-name", "astha-was-here").stdout  # noqa: S108
    assert outside == ""  # what the daemon calls /tmp is private


def test_a_jvm_runs_with_the_drop_in_for_spark_only(service: Service) -> None:
    unit = "astha-jvm.service"
    service.machine.run("cp", f"/usr/local/lib/systemd/system/{UNIT}", f"/etc/systemd/system/{unit}")
    service.drop_in("jvm", "Type=oneshot\nRestart=no\nExecStart=\nExecStart=/java/bin/java -version", unit)
    assert service.machine.run("systemctl", "start", unit, check=False).returncode != 0
    assert "executable" in service.journal(unit)
    service.machine.run("cp", "/bundle/systemd/spark.conf", f"/etc/systemd/system/{unit}.d/spark.conf")
    service.systemctl("daemon-reload")
    service.systemctl("start", unit)


def test_an_upgrade(service: Service) -> None:
    done = service.installer("upgrade", *wheel("0.2.0"))
    assert "upgraded from 0.1.0 to 0.2.0" in done.stderr
    assert "0.2.0" in service.machine.run("astha", "--version").stdout
    service.delivers("after-upgrade")
    service.delivers("after-upgrade-followed", FOLLOWED)


def test_a_version_that_does_not_start_is_rolled_back_without_its_schema(service: Service) -> None:
    """The old version can use the new schema, so nothing is dropped."""
    done = service.installer("upgrade", *wheel("0.3.0"), check=False)
    assert done.returncode == 1
    assert "0.2.0 runs again. The upgrade to 0.3.0 failed" in done.stderr
    assert "0.2.0" in service.machine.run("astha", "--version").stdout
    assert service.schema() == ("compatible", "next")
    service.delivers("after-failed-upgrade")


def test_an_upgrade_killed_in_the_middle_is_finished_by_the_next(service: Service) -> None:
    service.machine.run(
        "systemd-run", "--quiet", "--unit=upgrading", "/bundle/systemd/installer.py", "upgrade", *wheel("0.4.0")
    )
    end = time.monotonic() + DEADLINE_S
    while service.show("ActiveState") != "inactive" and time.monotonic() < end:
        assert service.show("ActiveState", "upgrading") == "active", service.journal("upgrading")
    refused = service.installer("upgrade", *wheel("0.4.0"), check=False)
    service.systemctl("kill", "--signal=KILL", "upgrading.service")
    assert "another run of the installer is under way" in refused.stderr
    service.installer("upgrade", *wheel("0.4.0"))
    assert "0.4.0" in service.machine.run("astha", "--version").stdout
    service.delivers("after-killed-upgrade")


def test_a_rollback_by_hand(service: Service) -> None:
    service.installer("rollback")
    assert "0.2.0" in service.machine.run("astha", "--version").stdout
    service.delivers("after-rollback")
    assert service.schema() == ("compatible", "next")


def test_a_schema_that_the_old_version_cannot_use_is_taken_back(service: Service) -> None:
    done = service.installer("upgrade", *wheel("0.5.0"), check=False)
    assert done.returncode == 1
    assert "0.2.0 runs again. The upgrade to 0.5.0 failed" in done.stderr
    assert service.schema() == ("compatible", "next")
    service.delivers("after-downgrade")


def test_a_version_too_old_for_the_schema_is_refused_while_the_daemon_runs(service: Service) -> None:
    service.installer("upgrade", *wheel("0.6.0"))
    assert service.schema() == ("current", "then")
    pid = service.show("MainPID")
    done = service.installer("upgrade", *wheel("0.2.0"), check=False)
    assert done.returncode == 1
    assert "has a schema that is too new for 0.2.0: nothing was changed" in done.stderr
    assert service.show("MainPID") == pid
    service.delivers("after-refusal")


def test_uninstall_leaves_data_and_settings(service: Service) -> None:
    received = service.received()
    service.installer("uninstall")
    assert service.machine.run("systemctl", "cat", UNIT, check=False).returncode != 0
    assert service.machine.run("sh", "-c", "ls /opt").stdout.split() == []
    assert service.received() == received
    service.machine.run("test", "-s", "/var/lib/astha/registry.db")
    assert TOKEN in service.machine.run("cat", "/etc/astha/credentials/server.token").stdout
    service.installer("install", *wheel("0.6.0", "requirements-lake.txt"))
    service.systemctl("start", UNIT)
    service.delivers("after-reinstall")


def test_the_timer_verifies(service: Service) -> None:
    """After the installation with the lake's packages above."""
    metrics = "/var/cache/astha/astha_verify.prom"
    service.machine.write(
        "/etc/systemd/system/astha-verify.timer.d/soon.conf", "[Timer]\nOnActiveSec=1s\nRandomizedDelaySec=0\n"
    )
    service.systemctl("daemon-reload")
    service.systemctl("enable", "--now", "astha-verify.timer")
    eventually_now(lambda: service.show("ExecMainExitTimestampMonotonic", VERIFY) != "0", "verified", DEADLINE_S)
    assert service.show("Result", VERIFY) == "success", service.journal(VERIFY)
    read = service.machine.run("runuser", "-u", "games", "--", "cat", metrics)
    assert "astha_verify_differences 0.0" in read.stdout
    service.installer("uninstall")
    assert service.machine.run("systemctl", "cat", "astha-verify.timer", check=False).returncode != 0
    assert "astha-verify" not in service.systemctl("list-timers", "--all")
