"""docs/how-to/write-a-component.md and `astha component new`: their code is tested, loaded and run by a daemon."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from mypy import api as mypy

from astha.cli.component_skeleton import skeleton
from astha.subscribers.contract import is_durable
from astha.subscribers.loader import load_component
from astha.testing import make_context
from registry.connect import open_store
from tests.integration.astha.processes import ROOT, Astha, Daemon
from tests.samples import segment
from tests.waiting import eventually

PAGE = ROOT / "docs" / "how-to" / "write-a-component.md"
COMPONENTS = {"topic_sizes": False, "topic_totals": True}  # name: durable


def shown() -> dict[str, str]:
    """Returns the files of the page: code blocks whose first line is a comment with their path."""
    blocks = re.findall(r"^```\w+\n# (\S+/\S+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return dict(blocks)


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def run_tests(directory: Path) -> str:
    """Runs the tests below a directory as their author would; returns the output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "."],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The page's files, as a reader would copy them."""
    for path, text in shown().items():
        target = tmp_path / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
    return tmp_path


def test_the_page_shows_what_the_command_writes() -> None:
    wanted = {
        f"{name}/{file}": text
        for name, durable in COMPONENTS.items()
        for file, text in skeleton(name, durable=durable).items()
    }
    assert shown() == wanted


@pytest.mark.parametrize("name", COMPONENTS)
def test_an_empty_file_becomes_a_tested_component_in_under_50_lines(name: str) -> None:
    """The component as it is shown, with blank lines; and the code of the component and its test, without."""
    files = shown()
    component, test = files[f"{name}/__init__.py"], files[f"{name}/test_{name}.py"]
    assert len(component.splitlines()) < 50
    lines = code_lines(component) + code_lines(test)
    assert lines < 50
    (paragraph,) = [part for part in PAGE.read_text().split("\n\n") if part.startswith(f"`{name}` ")]
    assert f"{lines} lines of code with its test" in paragraph


def test_the_tests_of_the_page_pass(written: Path) -> None:
    assert "2 passed" in run_tests(written)


@pytest.mark.slow
def test_the_code_of_the_page_is_typed(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    cache = ROOT / ".mypy_cache"  # that of `make lint`, whose configuration it needs
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(cache)]
    report, errors, _ = mypy.run([*config, "--strict", "--no-error-summary", *COMPONENTS])
    assert (report, errors) == ("", "")


@pytest.fixture
def astha(written: Path, sqlite_url: str) -> Iterator[Astha]:
    """A daemon's directory with both components of the page."""
    entries: dict[str, object] = {}
    for name in COMPONENTS:
        entries |= yaml.safe_load((written / name / "subscriptions.yaml").read_text())["components"]
    (written / "subscriptions.yaml").write_text(yaml.safe_dump({"components": entries}))
    command = Astha(written, sqlite_url, {"ASTHA_LEASE__TTL_S": "2"})
    yield command
    for daemon in command.started:
        daemon.close()


def totals(astha: Astha) -> dict[str, int]:
    path = astha.directory / "topic_totals.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT topic, records FROM totals"))


def size(daemon: Daemon) -> float | None:
    """Returns the metric of topic_sizes."""
    for line in daemon.client().lines("/metrics"):
        if line.startswith(b"astha_topic_sizes_topic_bytes{") and b'topic="clicks"' in line:
            return float(line.split()[-1])
    return None


@pytest.mark.slow
async def test_a_daemon_delivers_to_the_components_of_the_page(astha: Astha) -> None:
    store = await open_store(astha.url)
    try:
        await store.create_topic("clicks", 1)
        await store.add_segments([segment(0, topic="clicks")])
        first = astha.run()
        first.until_ready()
        assert totals(astha) == {"clicks": 10}, "from the first refresh"
        await store.add_segments([segment(10, topic="clicks")])
        await eventually(lambda: totals(astha) == {"clicks": 20}, "the first delivery")
        await eventually(lambda: size(first) == 2000.0, "the metric")

        first.send(signal.SIGKILL)
        assert first.ended() == -signal.SIGKILL
        await store.add_segments([segment(20, topic="clicks")])
        second = astha.run()
        second.until_ready()
        await eventually(lambda: totals(astha) == {"clicks": 30}, "what was missed")
        await eventually(lambda: size(second) == 3000.0, "the metric after a refresh")
        second.send(signal.SIGTERM)
        assert second.ended() == 0
    finally:
        await store.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_new_component_passes_its_test_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    name = f"acme_{tmp_path.name.replace('-', '_')}x"
    command = Astha(tmp_path, "sqlite:///none.db", {})
    done = command("component", "new", name, *(["--durable"] if durable else []))
    assert done.returncode == 0, done.stderr
    assert "1 passed" in run_tests(tmp_path)
    entry = yaml.safe_load((tmp_path / name / "subscriptions.yaml").read_text())["components"][name]
    for line in (tmp_path / name / "subscriptions.yaml").read_text().splitlines():
        assert line in done.stdout
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    subscriber = load_component(name, entry["settings"], make_context(), entry["use"])
    assert subscriber.subscribed_tables == set(entry["tables"])
    assert is_durable(subscriber) is durable
