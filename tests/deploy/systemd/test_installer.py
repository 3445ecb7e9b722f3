"""The installer's logic on a simulated machine; `make systemd` runs it on a real one."""

from __future__ import annotations

import fcntl
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from deploy.systemd import installer
from registry.schema_status import SchemaState
from tests.deploy.systemd.simulated_host import SCHEMAS, Killed, SimulatedHost

BOTH = {"astha.service", "astha@reports.service"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "READY_FOR_S", 0.0)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    directory.mkdir()
    for version in SCHEMAS:
        (directory / f"astha-{version}-py3-none-any.whl").write_text(version)
    (directory / "requirements.txt").write_text("")
    return directory


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(tmp_path / "root")


def run(host: SimulatedHost, bundle: Path, command: str, version: str | None = None, *more: str) -> int:
    arguments = [command]
    if version is not None:
        arguments += [f"{bundle}/astha-{version}-py3-none-any.whl", "--requirements", f"{bundle}/requirements.txt"]
    return installer.main([*arguments, *more], host)


@pytest.fixture
def running(host: SimulatedHost, bundle: Path) -> SimulatedHost:
    """Version 0.1.0 is installed, and runs as a daemon and a follower."""
    assert run(host, bundle, "install", "0.1.0") == 0
    host.schema, host.units_running = SCHEMAS["0.1.0"], set(BOTH)
    host.commands.clear()
    return host


def test_installs_programs_units_and_settings_and_starts_nothing(host: SimulatedHost, bundle: Path) -> None:
    assert run(host, bundle, "install", "0.1.0") == 0
    assert host.current == "0.1.0"
    assert (host.root / "usr/local/bin/astha").readlink() == Path("/opt/astha/current/bin/astha")
    assert (host.root / "usr/local/lib/systemd/system/astha@.service").exists()
    assert (host.root / "etc/astha/credentials").stat().st_mode & 0o777 == 0o700
    assert not host.units_running
    pip = [command for command in host.commands if "pip install" in command]
    assert ["--require-hashes" in command for command in pip] == [True, False]
    assert "--no-deps" in pip[1]


def test_installing_again_changes_no_settings_and_builds_nothing(host: SimulatedHost, bundle: Path) -> None:
    run(host, bundle, "install", "0.1.0")
    (host.root / "etc/astha/astha.yaml").write_text("mine")
    host.commands.clear()
    assert run(host, bundle, "install", "0.1.0") == 0
    assert (host.root / "etc/astha/astha.yaml").read_text() == "mine"
    assert not any("pip" in command for command in host.commands)


def test_growing_waits_and_spark_are_drop_ins(host: SimulatedHost, bundle: Path) -> None:
    host.systemd = installer.BACKOFF_SINCE
    assert run(host, bundle, "install", "0.1.0", "--spark") == 0
    units = host.root / "usr/local/lib/systemd/system"
    assert "RestartSteps" in (units / "astha.service.d/backoff.conf").read_text()
    spark = host.root / "etc/systemd/system/astha@.service.d/spark.conf"
    assert "MemoryDenyWriteExecute=no" in spark.read_text()
    host.systemd = installer.BACKOFF_SINCE - 1
    assert run(host, bundle, "install", "0.1.0") == 0
    assert not (units / "astha.service.d/backoff.conf").exists()


def test_a_python_that_the_service_cannot_see_is_refused(
    host: SimulatedHost, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SimulatedHost, "_result", lambda _host, _command: (0, "/root/pythons/3.11 3 11\n"))
    assert run(host, bundle, "install", "0.1.0") == 1
    assert "the service can't see /root/pythons/3.11" in capsys.readouterr().err


def test_two_runs_at_once_are_refused(host: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = host.root / "run/lock/astha-installer"
    path.parent.mkdir(parents=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(host, bundle, "install", "0.1.0") == 1
    assert "another run" in capsys.readouterr().err
    assert run(host, bundle, "install", "0.1.0") == 0


def test_a_second_version_needs_upgrade_and_the_same_version_the_same_contents(
    running: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(running, bundle, "install", "0.2.0") == 1
    assert "0.1.0 is installed: use upgrade" in capsys.readouterr().err
    (bundle / "astha-0.1.0-py3-none-any.whl").write_text("something else")
    assert run(running, bundle, "install", "0.1.0") == 1
    assert "other contents" in capsys.readouterr().err


def test_an_upgrade_stops_migrates_switches_and_starts(running: SimulatedHost, bundle: Path) -> None:
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert (running.current, running.schema, running.units_running) == ("0.2.0", "0002", BOTH)
    wanted = re.compile(r"^systemctl (stop|daemon-reload|start)|/bin/astha registry (migrate)$")
    found = [match for command in running.commands if (match := wanted.search(command))]
    steps = [match[1] or match[2] for match in found]
    assert steps == ["stop", "stop", "migrate", "migrate", "daemon-reload", "start", "start"]
    assert run(running, bundle, "upgrade", "0.3.0") == 0
    assert sorted(path.name for path in (running.root / "opt/astha").glob("0.*")) == ["0.2.0", "0.3.0"]


def test_an_upgrade_while_nothing_runs_says_that_nothing_was_migrated(
    running: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.units_running.clear()
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert (running.current, running.schema, running.units_running) == ("0.2.0", "0001", set())
    assert "no registry was migrated" in capsys.readouterr().err


@pytest.mark.parametrize("failing", [None, "0.2.0 registry migrate", "0.2.0 check"])
def test_a_failed_upgrade_goes_back(
    running: SimulatedHost, bundle: Path, failing: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if failing is None:
        running.broken.add("0.2.0")
    else:
        running.failing.add(failing)
    assert run(running, bundle, "upgrade", "0.2.0") == 1
    assert "0.1.0 runs again. The upgrade to 0.2.0 failed" in capsys.readouterr().err
    assert (running.current, running.schema, running.units_running) == ("0.1.0", "0001", BOTH)
    assert not (running.root / "opt/astha/.upgrade").exists()


@pytest.mark.parametrize("failing", [None, "0.2.0 check"])
def test_a_failed_upgrade_leaves_a_schema_that_the_old_version_can_use(
    running: SimulatedHost, bundle: Path, failing: str | None
) -> None:
    """A downgrade would drop what only the new schema has."""
    running.compatible_from = {"0002": "0001"}
    running.broken, running.failing = ({"0.2.0"}, set()) if failing is None else (set(), {failing})
    assert run(running, bundle, "upgrade", "0.2.0") == 1
    assert (running.current, running.schema, running.units_running) == ("0.1.0", "0002", BOTH)
    assert not any("--revision" in command for command in running.commands)


def test_a_version_too_old_for_the_schema_is_refused_while_the_units_run(
    running: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    running.commands.clear()
    assert run(running, bundle, "upgrade", "0.1.0") == 1
    assert "has a schema that is too new for 0.1.0: nothing was changed" in capsys.readouterr().err
    assert not any("systemctl stop" in command for command in running.commands)
    assert (running.current, running.schema, running.units_running) == ("0.2.0", "0002", BOTH)
    assert not (running.root / "opt/astha/.upgrade").exists()


def test_an_older_version_that_can_use_the_schema_is_installed(running: SimulatedHost, bundle: Path) -> None:
    running.compatible_from = {"0002": "0001"}
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert run(running, bundle, "upgrade", "0.1.0") == 0
    assert (running.current, running.schema, running.units_running) == ("0.1.0", "0002", BOTH)


def test_the_states_are_those_of_the_registry() -> None:
    assert {*installer.USABLE, installer.TOO_NEW} == set(get_args(SchemaState)) - {"missing", "old"}


def test_problems_that_show_before_the_stop_change_nothing(
    running: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    running.commands.clear()
    running.failing = {"0.3.0 check"}
    assert run(running, bundle, "upgrade", "0.3.0") == 1
    assert "found problems for astha.service: nothing was changed" in capsys.readouterr().err
    assert not any("systemctl stop" in command for command in running.commands)


def test_the_rollback_by_hand(running: SimulatedHost, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, bundle, "rollback") == 1
    assert "no previous version" in capsys.readouterr().err
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert run(running, bundle, "rollback") == 0
    assert (running.current, running.schema, running.units_running) == ("0.1.0", "0001", BOTH)


def test_the_rollback_by_hand_leaves_a_schema_that_the_old_version_can_use(
    running: SimulatedHost, bundle: Path
) -> None:
    running.compatible_from = {"0002": "0001"}
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert run(running, bundle, "rollback") == 0
    assert (running.current, running.schema, running.units_running) == ("0.1.0", "0002", BOTH)


@pytest.mark.parametrize("then", ["upgrade", "rollback"])
def test_an_upgrade_killed_anywhere_is_finished_or_undone_by_the_next_run(
    running: SimulatedHost, bundle: Path, then: str, tmp_path: Path
) -> None:
    """After each command in turn, with the state that the earlier ones left."""
    killed, at = True, 0
    while killed:
        host = _copy(running, tmp_path / f"kill-{at}")
        host.kill_at = at
        try:
            run(host, bundle, "upgrade", "0.2.0")
            killed = False
        except Killed:
            host.kill_at = None
        journal = (host.root / "opt/astha/.upgrade").exists()
        if then == "upgrade" and killed:
            assert run(host, bundle, "upgrade", "0.2.0") == 0, at
        if then == "rollback" and journal:
            assert run(host, bundle, "rollback") == 0, at
            assert (host.current, host.schema) == ("0.1.0", "0001"), at
        elif then == "upgrade":
            assert (host.current, host.schema) == ("0.2.0", "0002"), at
        assert host.units_running == BOTH, at
        at += 1
    assert at > 15


def _copy(host: SimulatedHost, root: Path) -> SimulatedHost:
    shutil.copytree(host.root, root, symlinks=True)
    return replace(host, root=root, units_running=set(host.units_running), commands=[])


def test_a_unit_that_the_old_version_does_not_have_is_removed(running: SimulatedHost, bundle: Path) -> None:
    timer = running.root / "usr/local/lib/systemd/system/astha-verify.timer"
    (running.root / "opt/astha/0.1.0/systemd/astha-verify.timer").unlink()  # as if 0.1.0 had none
    assert run(running, bundle, "upgrade", "0.2.0") == 0
    assert timer.exists()
    assert run(running, bundle, "rollback") == 0
    assert not timer.exists()


def test_uninstall_leaves_data_and_settings(running: SimulatedHost, bundle: Path) -> None:
    data = running.root / "var/lib/astha/registry.db"
    data.parent.mkdir(parents=True)
    data.write_text("precious")
    assert run(running, bundle, "uninstall") == 0
    assert "systemctl disable --now astha-verify.timer" in running.commands
    assert data.read_text() == "precious"
    assert (running.root / "etc/astha/astha.yaml").exists()
    left = [path for path in (running.root / "usr/local").rglob("*") if not path.is_dir()]
    assert left == []
    assert not (running.root / "opt/astha").exists()
    assert not running.units_running
    assert run(running, bundle, "uninstall") == 0


def test_a_tree_for_an_image_is_filled_without_systemd(tmp_path: Path, bundle: Path) -> None:
    host = SimulatedHost(tmp_path / "image", live=False)
    assert run(host, bundle, "install", "0.1.0") == 0
    assert not any(command.startswith("systemctl daemon") or "sysusers" in command for command in host.commands)
