"""A wheel installed without its extras: missing packages are named, with the command that installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from astha import extras
from astha.cli.exit_codes import Exit, failure_of
from astha.cli.plugins import found
from registry.migrate import migrate
from tests.integration.astha.processes import ROOT

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
{then}
"""
COMMAND = "from astha.cli import main\nmain(prog_name='astha')"
PACKAGES = {extra: extras._packages()[extra] for extra in ("lake", "spark", "streams")}


def without(hidden: frozenset[str], then: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(hidden=set(hidden), then=then), *arguments],
        cwd=directory, env={**inherited, "PYTHONPATH": str(ROOT), "ASTHA_REGISTRY": "sqlite:///registry.db"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_help_lists_a_command_with_what_it_needs(tmp_path: Path) -> None:
    ended = without(PACKAGES["lake"], COMMAND, tmp_path, "--help")
    assert ended.returncode == Exit.OK
    lines = {line.split()[0]: line for line in ended.stdout.splitlines() if line.startswith("  ") and line.split()}
    assert "(not installed: pip install 'astha[lake]')" in lines["tables"]
    assert "Check whether a daemon could run" in lines["check"]


def test_running_it_gives_the_same_hint(tmp_path: Path) -> None:
    ended = without(PACKAGES["lake"], COMMAND, tmp_path, "tables", "list", "--any", "thing")
    assert (ended.returncode, ended.stderr) == (
        Exit.USAGE,
        "astha: the command 'tables' needs packages that are not installed: pip install 'astha[lake]'\n",
    )


def test_check_names_each_component_and_its_extra(tmp_path: Path) -> None:
    migrate(f"sqlite:///{tmp_path}/registry.db")
    (tmp_path / "subscriptions.yaml").write_text((ROOT / "subscriptions.yaml").read_text())
    ended = without(PACKAGES["lake"] | PACKAGES["spark"], COMMAND, tmp_path, "check")
    assert ended.returncode == Exit.PROBLEM, ended.stderr
    text = " ".join(ended.stdout.split())
    for component, remedy in {
        "iceberg_updater": "pip install 'astha[lake]'",
        "compactor": "pip install 'astha[lake,spark]'",
        "segment_store": "pip install 'astha[streams]'",
    }.items():
        assert f"problem component {component} component {component} needs the package" in text
        assert remedy in text[text.index(f"component {component} ") :].partition("problem component")[0]
    assert "internal error" not in ended.stdout + ended.stderr


def test_check_reports_what_the_mqtt_sink_lacks(tmp_path: Path) -> None:
    migrate(f"sqlite:///{tmp_path}/registry.db")
    entry = "components: {mqtt_sink: {tables: [topics], settings: {url: 'mqtt://broker'}}}"
    (tmp_path / "subscriptions.yaml").write_text(entry)
    ended = without(frozenset({"aiomqtt", "paho"}), COMMAND, tmp_path, "check")
    assert ended.returncode == Exit.PROBLEM
    assert "pip install 'astha[mqtt]'" in " ".join(ended.stdout.split())


def test_check_reports_that_the_compactor_lacks_spark(tmp_path: Path) -> None:
    migrate(f"sqlite:///{tmp_path}/registry.db")
    tables = "[table_files, table_stats, table_delete_files]"
    (tmp_path / "subscriptions.yaml").write_text(f"components: {{compactor: {{tables: {tables}}}}}\n")
    ended = without(PACKAGES["spark"], COMMAND, tmp_path, "check")
    assert ended.returncode == Exit.PROBLEM
    assert "-> pip install 'astha[spark]'" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("needed", [("lake",), ("streams",), ("lake", "spark"), ("lake", "spark", "streams")])
def test_components_and_commands_need_no_more_than_is_listed(needed: tuple[str, ...], tmp_path: Path) -> None:
    """With only these extras, the modules of the daemon and of the commands can be imported."""
    commands = [point.module for point in found().values()]
    subscribers = [
        f"{package}.subscriber" for package in extras._NEEDS if "." not in package.removeprefix("components.")
    ]
    modules = [name for name in (*commands, *subscribers) if _needs(name) == needed and find_spec(name) is not None]
    assert modules or "streams" in needed
    hidden = frozenset().union(*PACKAGES.values()) - frozenset().union(*(PACKAGES[extra] for extra in needed))
    then = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    ended = without(hidden, then, tmp_path)
    assert ended.returncode == 0, ended.stderr


def _needs(module: str) -> tuple[str, ...]:
    return next(needs for package, needs in extras._NEEDS.items() if f"{module}.".startswith(f"{package}."))


def test_a_package_missing_at_run_time_is_not_an_internal_error() -> None:
    failure = failure_of(ModuleNotFoundError("No module named 'zstandard.backend'", name="zstandard.backend"))
    assert (failure.exit_code, failure.message) == (
        Exit.USAGE,
        "the package 'zstandard.backend' is not installed: pip install 'astha[kafka]'",
    )


def test_a_package_of_no_extra_has_no_remedy() -> None:
    assert extras.remedy_for("acme.audit", "acme") is None
    assert extras.missing_extras("acme.audit") == ()
