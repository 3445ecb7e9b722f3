"""`astha init` and `astha up`, as processes in an empty directory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from astha.cli import main
from astha.cli.exit_codes import Exit
from astha.cli.project import embedded_directory, embedded_url
from tests.integration.astha.processes import DEADLINE_S, ROOT
from tests.waiting import eventually_now


def environment(directory: Path, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    own = {"PYTHONPATH": str(ROOT), "RUNTIME_DIRECTORY": f"{directory}/run", "ASTHA_SERVER__PORT": "0"}
    return {**inherited, **own, **more}


def astha(directory: Path, *arguments: str, input: str | None = None, code: Exit = Exit.OK) -> str:  # noqa: A002
    """Runs a command in this process, which has imported what they need, as if it were started in the directory."""
    own = environment(directory)
    removed = {name: None for name in os.environ if name not in own}
    with contextlib.chdir(directory):
        ended = CliRunner().invoke(main, arguments, input=input, env={**removed, **own})
    assert ended.exit_code == code, ended.output
    return ended.output


class Up:
    def __init__(self, directory: Path, *arguments: str) -> None:
        self.log = directory / "up.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "astha.cli", "up", *arguments],
                cwd=directory, env=environment(directory), stdout=log, stderr=log,
            )  # fmt: skip
        eventually_now(lambda: "component is live" in self.text() or self.process.poll() is not None, "up", DEADLINE_S)
        assert self.process.poll() is None, self.text()

    def text(self) -> str:
        return self.log.read_text()

    def stop(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        assert self.process.wait(DEADLINE_S) == 0, self.text()
        assert self.text().endswith("stopped\n")


@pytest.mark.parametrize("backend", ["embedded", "sqlite"])
def test_up_keeps_its_data_and_other_commands_find_it(project_directory: Path, backend: str) -> None:
    given = () if backend == "embedded" else ("--registry", f"sqlite:///{project_directory}/own.db")
    if backend == "embedded":
        assert embedded_url(project_directory.absolute()) in (text := init(project_directory)), text
    else:
        (project_directory / "astha.yaml").write_text(f"registry: {{url: 'sqlite:///{project_directory}/own.db'}}\n")
        (project_directory / "subscriptions.yaml").write_text(
            "components: {metadata_orchestrator: {tables: [tables, table_metadata]}}"
        )
    up = Up(project_directory, *given)
    try:
        assert "dashboard  http://127.0.0.1:" in up.text()
        assert "token" not in up.text()  # it is for terminals, not for logs
        refused = astha(project_directory, "up", *given, code=Exit.PROBLEM)
        assert f"runs for {project_directory} already, as process {up.process.pid}" in refused
        astha(project_directory, "tables", "create", "shop.orders", "--column", "id:long!")
        astha(project_directory, "insert", "shop.orders", "-", "--format", "json", input='{"id": 1}\n')
        up.stop(signal.SIGINT)
        up = Up(project_directory, *given)
        assert "shop.orders" in astha(project_directory, "tables", "list")
        if backend == "embedded":  # whose astha.yaml has a token
            (url,) = re.findall(r"listening .* url=(\S+)", up.text())
            assert "snapshotter is paused" in astha(project_directory, "pause", "snapshotter", "--server", url)
        up.stop(signal.SIGTERM)
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait()
    assert not (project_directory / ".astha" / "postgres" / "data" / "postmaster.pid").exists()


def init(directory: Path) -> str:
    assert "The registry is an embedded PostgreSQL server" in astha(directory, "init")
    assert stat.S_IMODE((directory / "astha.yaml").stat().st_mode) == 0o600  # it holds the token
    return (directory / "astha.yaml").read_text()


@pytest.mark.parametrize("command", ["init", "up"])
def test_the_terminal_says_why_the_registry_is_a_sqlite_file(project_directory: Path, command: str) -> None:
    project = project_directory / "a project"  # whose name no socket can have
    project.mkdir()
    if command == "init":
        said = astha(project, "init")
    else:
        up = Up(project)
        said = up.text()
        up.stop(signal.SIGTERM)
    assert "The registry is a SQLite file, because the directory's name is too long or too unusual" in said
    assert "# a SQLite file, because the directory's name" in (project / "astha.yaml").read_text()


def test_init_replaces_nothing_unless_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = CliRunner().invoke(main, ["init", "shop"])
    assert first.exit_code == 0, first.output
    assert "cd shop && astha up" in first.output
    (tmp_path / "shop" / "astha.yaml").write_text("mine")
    again = CliRunner().invoke(main, ["init", "shop"])
    assert again.exit_code == Exit.USAGE
    assert "--force" in again.stderr
    assert (tmp_path / "shop" / "astha.yaml").read_text() == "mine"
    assert CliRunner().invoke(main, ["init", "shop", "--force"]).exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    checked = CliRunner().invoke(main, ["subscriptions"])
    assert checked.exit_code == 0, checked.output
    assert "iceberg_updater" in checked.output


def test_only_the_socket_of_a_project_is_that_of_an_embedded_server() -> None:
    project = Path("/srv/shop")
    assert embedded_directory(embedded_url(project)) == project / ".astha" / "postgres"
    for url in (
        "sqlite:////srv/shop/registry.db",
        "postgresql://a@db/astha",
        "postgresql://a@/astha?host=/run/postgresql",
    ):
        assert embedded_directory(url) is None
