"""Components whose code can't be loaded: named with a remedy, without affecting others."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.migrate import migrate
from tests.integration.astha.processes import TOKEN, Astha, add_topic, prepared
from tests.waiting import eventually_now

BROKEN = {
    "typo": "def create(settings, context) return None\n",
    "needy": "import a_package_that_nobody_has\n",
    "quits": "import sys\nsys.exit(1)\n",
    "buggy": "def create(settings, context):\n    return {}['absent']\n",
    "blunt": (
        "from astha.testing import RecordingSubscriber\n"
        "class Blunt(RecordingSubscriber):\n"
        "    def on_event(self, event): ...\n"
        "def create(settings, context):\n    return Blunt('topics')\n"
    ),
}


@pytest.fixture
def astha(tmp_path: Path) -> Iterator[Astha]:
    """One good component among five that can't be loaded."""
    url = f"sqlite:///{tmp_path}/registry.db"
    migrate(url)
    with prepared(url, tmp_path) as command:
        entries = ""
        for name, code in BROKEN.items():
            (tmp_path / f"acme_{name}.py").write_text(code)
            entries += f"  {name}: {{use: 'acme_{name}:create', tables: [topics]}}\n"
        with (tmp_path / "subscriptions.yaml").open("a") as file:
            file.write(entries)
        yield command


@pytest.mark.slow
def test_the_others_run_and_status_names_each_of_them(astha: Astha) -> None:
    daemon = astha.run()
    eventually_now(lambda: bool(astha.audited()), "the first refresh of the good one")
    add_topic(astha.url, "events")
    eventually_now(lambda: any(line.endswith("INSERT events") for line in astha.audited()), "a delivery")

    def states() -> dict[str, tuple[str, str]]:
        components = daemon.client(TOKEN).get("/status")["components"]
        return {each["name"]: (each["state"], each["reason"] or "") for each in components}

    eventually_now(lambda: all(states()[name][0] == "broken" for name in BROKEN), "the others broken")
    found = states()
    assert found["audit"][0] == "live"
    for name, complaint in {
        "typo": "SyntaxError",
        "needy": "needs the package 'a_package_that_nobody_has'",
        "quits": "tried to end the process with code 1",
        "buggy": "KeyError: 'absent'",
        "blunt": "on_event of Blunt is not asynchronous -> declare it `async def on_event",
    }.items():
        assert f"component {name}" in found[name][1]
        assert complaint in found[name][1]
    line = next(line for line in daemon.lines if line.get("component") == "buggy")
    assert "KeyError" in line["exception"], "the traceback is in the log"
    status = astha("status", "--server", daemon.url)
    assert status.returncode == 1
    assert "drops" in status.stdout
    assert "component typo is broken: can't be loaded" in status.stdout
    daemon.send(signal.SIGTERM)
    assert daemon.ended() == 0


def test_with_refuse_nothing_runs(astha: Astha) -> None:
    result = astha("run", environment={"ASTHA_DAEMON__ON_BAD_COMPONENT": "refuse"})
    assert result.returncode == 2
    assert "component typo: the import of acme_typo failed: SyntaxError" in result.stderr
    assert "daemon.on_bad_component" in result.stderr


def test_an_error_in_the_file_ends_the_daemon_at_the_start(astha: Astha) -> None:
    with (astha.directory / "subscriptions.yaml").open("a") as file:
        file.write("  compacter: {tables: [topics]}\n")
    result = astha("run")
    assert result.returncode == 2
    assert "line 11: there is no component 'compacter'" in result.stderr


def test_check_finds_each_of_them(astha: Astha) -> None:
    done = astha("check", "--json")
    assert done.returncode == 1, done.stderr
    results = {each["check"]: each for each in json.loads(done.stdout)["results"]}
    for name in BROKEN:
        result = results[f"component {name}"]
        assert result["verdict"] == "problem"
        assert f"component {name}" in result["detail"]
        assert result["remedy"]
    assert results["components"]["detail"] == "1 accept their settings and tables"
