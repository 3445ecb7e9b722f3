"""The commands around a daemon, without a running one."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from astha.cli import control, main
from astha.cli.exit_codes import Exit
from astha.cli.project import SERVER_DIRECTORY, embedded_url
from astha.client import Refused

AUDIT = "components:\n  audit:\n    use: astha_cli_test_audit:create\n    tables: [topics]\n"


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory with a component, its subscriptions.yaml and an empty registry. Restores logging afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("ASTHA_REGISTRY", "ASTHA_CONFIG", "ASTHA_SERVER__TOKEN"):
        monkeypatch.delenv(name, raising=False)
    Path("subscriptions.yaml").write_text(AUDIT)
    Path("astha_cli_test_audit.py").write_text(
        "from astha.testing import RecordingSubscriber\n"
        "def create(settings, context):\n"
        "    return RecordingSubscriber('topics')\n"
    )
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.configure(**before)


def astha(*arguments: str, code: Exit = Exit.OK) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def refused(code: Exit, *arguments: str) -> str:
    """Returns the one line with the reason."""
    result = astha(*arguments, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith("astha: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


class TestRun:
    def test_with_an_unknown_setting(self) -> None:
        assert "there is no setting 'server.prot'" in refused(Exit.USAGE, "run", "--set", "server.prot=1")

    def test_with_a_missing_settings_file(self) -> None:
        assert "absent.yaml: can't be read" in refused(Exit.USAGE, "run", "--config", "absent.yaml")

    def test_without_subscriptions(self) -> None:
        said = refused(Exit.USAGE, "run", "--subscriptions", "absent.yaml")
        assert said == (
            "astha: absent.yaml: no such file: list the components in it (docs/parts/daemon.md), or name another with "
            "--subscriptions\n"
        )

    def test_with_a_registry_that_is_not_migrated(self) -> None:
        assert "holds no registry: run `astha registry migrate`" in refused(Exit.USAGE, "run")

    def test_threads_of_the_caller_do_not_delay_the_exit(self) -> None:
        """Only threads that the command itself has started may force the exit."""
        end = threading.Event()
        other = threading.Thread(target=end.wait)
        other.start()
        try:
            refused(Exit.USAGE, "run")
            timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
            for timer in timers:
                timer.join(3)
            assert not any(timer.is_alive() for timer in timers)
        finally:
            end.set()
            other.join()

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            (AUDIT.replace("_audit:", "_absent:"), "line 2: there is no component 'audit'"),
            (
                AUDIT.replace("[topics]", "[topics, tables]"),
                "line 2: component audit: subscriptions.yaml and the component",
            ),
        ],
    )
    def test_with_a_component_that_can_not_be_loaded(self, text: str, complaint: str) -> None:
        astha("registry", "migrate")
        Path("subscriptions.yaml").write_text(text)
        assert f"subscriptions.yaml: {complaint}" in refused(Exit.USAGE, "run")


@pytest.mark.parametrize(
    "arguments", [("status",), ("refresh", "audit"), ("pause", "audit"), ("resume", "audit"), ("tail",)]
)
def test_no_daemon_is_one_line(arguments: tuple[str, ...]) -> None:
    said = refused(Exit.UNAVAILABLE, *arguments, "--set", "server.port=1")
    assert said.startswith("astha: no daemon responds at http://127.0.0.1:1 (Connection refused)")


def test_a_stopped_registry_of_a_project_is_started_by_up(project_directory: Path) -> None:
    url = embedded_url(project_directory)
    (project_directory / SERVER_DIRECTORY).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as killed:  # which leaves its socket
        killed.bind(str(project_directory / SERVER_DIRECTORY / ".s.PGSQL.5432"))
    for command in (("tables", "list"), ("status", "--all")):
        said = refused(Exit.UNAVAILABLE, *command, "--registry", url)
        assert said == f"astha: the registry of {project_directory} is not running: start it with `astha up`\n"


class TestInTheWrongDirectory:
    HINT = "; there is no astha.yaml here: run this in the project's directory, or name the file with --config\n"

    def test_no_registry_was_meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert refused(Exit.USAGE, "run").endswith(f"run `astha registry migrate`{self.HINT}")
        assert self.HINT not in refused(Exit.USAGE, "run", "--registry", "sqlite:///own.db")
        monkeypatch.setenv("ASTHA_REGISTRY", "sqlite:///own.db")
        assert self.HINT not in refused(Exit.USAGE, "run")

    def test_no_daemon_was_meant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise Refused("a token is required", 401)

        monkeypatch.setattr(control, "client_of", refuse)
        assert refused(Exit.PROBLEM, "status").endswith(f"a token is required{self.HINT}")
        assert self.HINT not in refused(Exit.PROBLEM, "status", "--server", "http://127.0.0.1:1")
        Path("astha.yaml").write_text("server: {port: 1}\n")
        assert self.HINT not in refused(Exit.PROBLEM, "status")


def test_an_invalid_address() -> None:
    assert "is not the address of a daemon" in refused(Exit.USAGE, "status", "--server", "nonsense")


def test_subscriptions_are_listed_by_table() -> None:
    lines = astha("subscriptions").stdout.splitlines()
    assert [line.split() for line in lines if not line.endswith(" -")] == [["topics", "audit"]]
    listed = json.loads(astha("subscriptions", "--json").stdout)
    assert listed["components"] == {"audit": {"use": "astha_cli_test_audit:create", "tables": ["topics"]}}
    Path("subscriptions.yaml").write_text("components: {}\n")
    assert astha("subscriptions").stdout == "no component is subscribed (subscriptions.yaml)\n"


def test_settings_are_listed_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_SERVER__TOKEN", "a-token-of-some-length")
    assert "server.port = 27840\n" in astha("settings").stdout
    assert {"name", "default", "variable", "description"} == json.loads(astha("settings", "--json").stdout)[0].keys()
    effective = astha("settings", "--effective", "--set", "server.port=5", "--json").stdout
    assert json.loads(effective)["server.port"] == "5"
    assert "a-token-of-some-length" not in effective


def test_a_flag_without_a_value() -> None:
    assert "write NAME=VALUE" in astha("run", "--set", "server.port", code=Exit.USAGE).stderr


def test_registry_commands_use_the_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("astha.yaml").write_text("registry: {url: 'sqlite:///configured.db'}\n")
    monkeypatch.setenv("ASTHA_CONFIG", "astha.yaml")
    astha("registry", "migrate")
    assert Path("configured.db").exists()


class TestCheck:
    def test_reports_only_the_schema_if_the_registry_is_not_migrated(self) -> None:
        result = astha("check", "--json", "--set", "server.port=0", code=Exit.PROBLEM)
        verdicts = {each["check"]: each["verdict"] for each in json.loads(result.stdout)["results"]}
        assert verdicts == {"subscriptions": "ok", "server address": "ok", "schema version": "problem"}

    def test_an_unreachable_server_could_not_be_checked(self) -> None:
        url = "postgresql://me:open-sesame@127.0.0.1:1/registry"
        result = astha("check", "--registry", url, "--set", "server.port=0", code=Exit.UNAVAILABLE)
        assert "could not check  wal_level" in result.stdout
        assert "problem" not in result.stdout
        assert "sesame" not in result.output

    def test_names_the_problems_of_components(self) -> None:
        astha("registry", "migrate")
        Path("subscriptions.yaml").write_text(AUDIT.replace("[topics]", "[tables]"))
        result = astha("check", code=Exit.PROBLEM)
        assert "line 2: component audit: subscriptions.yaml and the component disagree" in result.stdout
