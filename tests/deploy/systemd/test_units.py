"""The units by systemd's own checks, without a running systemd."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from astha.settings import Settings, load_settings
from components.commands.verify.cli import verify_command
from deploy.systemd import installer
from tests.servers.packages import Program, find_program

UNITS = Path(installer.__file__).parent
MAX_EXPOSURE = 20  # tenths


@pytest.fixture(scope="module")
def systemd_analyze() -> Program:
    return find_program("systemd-analyze", "systemd")


def analyze(program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **program.environment, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}
    return subprocess.run(
        [program.path, *arguments], env=environment, text=True, capture_output=True, check=False, timeout=60
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the units and the programs that they start."""
    for unit in installer.UNITS:
        installer.copy(UNITS / unit, tmp_path / "usr/local/lib/systemd/system" / unit)
    for program in ("opt/astha/current/bin/astha", "bin/sh"):
        path = tmp_path / program
        path.parent.mkdir(parents=True)
        path.touch(0o755)
    return tmp_path


def test_systemd_finds_nothing_to_complain_about(systemd_analyze: Program, root: Path) -> None:
    names = ["astha.service", "astha@reports.service", *installer.VERIFICATION]
    done = analyze(systemd_analyze, "verify", "--man=no", "--recursive-errors=no", f"--root={root}", *names)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_would_complain(systemd_analyze: Program, root: Path) -> None:
    unit = root / "usr/local/lib/systemd/system/astha.service"
    unit.write_text(unit.read_text().replace("RestartSec=", "RestartSecs="))
    done = analyze(systemd_analyze, "verify", "--man=no", "--recursive-errors=no", f"--root={root}", "astha.service")
    assert "RestartSecs" in done.stderr


@pytest.mark.parametrize(
    ("unit", "drop_in"),
    [*itertools.product(installer.DAEMONS, (None, "spark.conf")), ("astha-verify.service", None)],
)
def test_the_exposure_is_low(systemd_analyze: Program, tmp_path: Path, unit: str, drop_in: str | None) -> None:
    text = (UNITS / unit).read_text() + ("" if drop_in is None else (UNITS / drop_in).read_text())
    (tmp_path / unit).write_text(text)
    options = ["security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", "--no-pager"]
    done = analyze(systemd_analyze, *options, str(tmp_path / unit))
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    (tmp_path / unit).write_text(re.sub(r"(?m)^(Protect|Restrict[A-Z]|SystemCall|Capability).*$", "", text))
    assert analyze(systemd_analyze, *options, str(tmp_path / unit)).returncode != 0


def _lines(unit: str) -> set[str]:
    return {line for line in (UNITS / unit).read_text().splitlines() if line and not line.startswith("#")}


def test_a_follower_runs_as_the_daemon_does_with_settings_of_its_own() -> None:
    only_daemon = {
        "Description=Astha, which distributes the changes of a metadata registry",
        "After=network-online.target postgresql.service",
        "Environment=ASTHA_CONFIG=/etc/astha/astha.yaml ASTHA_SECRETS=%d",
        "RuntimeDirectory=astha",
        "Environment=ASTHA_LEASE__DIRECTORY=%t/astha",
    }
    assert _lines("astha.service") - _lines("astha@.service") == only_daemon
    assert len(_lines("astha@.service") - _lines("astha.service")) == len(only_daemon) + 1


@pytest.mark.parametrize(("unit", "directory"), [("astha.service", "astha"), ("astha@.service", "astha-%i")])
def test_a_killed_daemon_finds_the_lock_that_it_held(unit: str, directory: str) -> None:
    """The directory of the lock is the unit's own, and a restart does not remove it."""
    assert {
        f"RuntimeDirectory={directory}",
        f"Environment=ASTHA_LEASE__DIRECTORY=%t/{directory}",
        "RuntimeDirectoryPreserve=restart",
    } <= _lines(unit)


def test_the_verification_is_hardened_as_the_daemon_is() -> None:
    begins = ("Protect", "Private", "Restrict", "SystemCall", "Capability", "Ambient", "NoNewPrivileges", "Memory")
    wanted = {line for line in _lines("astha.service") if line.startswith(begins)}
    assert len(wanted) > 20
    assert wanted <= _lines("astha-verify.service")
    assert set(installer.PROPERTIES) - _lines("astha-verify.service") == {"UMask=0077"}


def test_the_verification_writes_where_node_exporter_can_read() -> None:
    lines = _lines("astha-verify.service")
    (command,) = (line.removeprefix("ExecStart=").split() for line in lines if line.startswith("ExecStart="))
    assert {"CacheDirectory=astha", "CacheDirectoryMode=0755", "UMask=0022"} <= lines
    *_, option, file = command
    assert (option, Path(file).parent, Path(file).suffix) == ("--metrics", Path("/var/cache/astha"), ".prom")
    context = verify_command.make_context("verify", command[2:])  # fails for an option that does not exist
    assert context.params["metrics_file"] == Path(file)


def test_commands_of_the_installer_run_as_the_service_does() -> None:
    assert set(installer.PROPERTIES) <= _lines("astha.service")


def test_the_limit_for_stopping_is_longer_than_the_daemons_own() -> None:
    (limit,) = (int(line[15:-1]) for line in _lines("astha.service") if line.startswith("TimeoutStopSec="))
    assert limit >= Settings().daemon.shutdown_timeout_s + 30


def test_the_examples_are_valid_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTHA_REGISTRY", raising=False)
    monkeypatch.setenv("ASTHA_SECRETS", str(tmp_path))
    for name in ("astha.yaml", "follower.yaml.example"):
        text = (UNITS / "etc" / name).read_text()
        every = tmp_path / name
        every.write_text(re.sub(r"(?m)^#(?=[a-z]+:$|  [a-z])", "", text))
        assert load_settings(UNITS / "etc" / name).subscriptions.parent == Path("/etc/astha")
        if "follower" in name:
            (tmp_path / "source.kafka.sasl.password").write_text("its credential")
        assert load_settings(every).subscriptions.parent == Path("/etc/astha")
    assert load_settings(tmp_path / "follower.yaml.example").source.url is not None
