"""The demo as a process: its exit status, and that nothing of it is left, however it ends.

`tests/integration/docs/test_tutorial.py` runs most of its commands, so the quick stories here are short.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.integration.astha.processes import ROOT
from tests.waiting import eventually_now

DEADLINE_S = 180.0
WHOLE_STORY_S = 1_800.0  # with downloads

pytestmark = pytest.mark.slow

Start: TypeAlias = Callable[..., "Demo"]


@pytest.fixture
def demo(project_directory: Path) -> Iterator[Start]:
    """Starts demos, and ends those that a failed test has left."""
    started: list[Demo] = []

    def start(*arguments: str, **given: Any) -> Demo:
        started.append(Demo(project_directory, *arguments, **given))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(DEADLINE_S)


class Demo:
    """A demo whose temporary files are below a directory. Its output is read as it comes, from a terminal or a pipe."""

    def __init__(self, directory: Path, *arguments: str, terminal: bool = False, **variables: str) -> None:
        self._directory = directory
        self._text = b""
        self._output, output = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy.demo", *arguments],
            cwd=ROOT, env=environment(directory, variables), start_new_session=True,
            stdin=output if terminal else subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        os.close(output)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return self._text.decode(errors="replace")

    def shows(self, text: str) -> None:
        eventually_now(lambda: text in self.text or self.process.poll() is not None, text, DEADLINE_S)
        assert text in self.text, self.text

    def end(self, limit_s: float = DEADLINE_S) -> int:
        """Waits for the end. Returns the exit status, when no process and no file is left."""
        try:
            status = self.process.wait(limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        assert processes_with(str(self._directory)) == []
        self._reader.join()
        os.close(self._output)
        assert list(self._directory.iterdir()) == []
        return status

    def _read(self) -> None:
        with suppress(OSError):  # of a terminal whose other side is closed
            while data := os.read(self._output, 65_536):
                self._text += data


def environment(directory: Path, variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory), "TERM": "xterm", **variables}


def processes_with(text: str) -> list[str]:
    """Returns the command lines of processes that have the text in them or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if text.encode() in command + (process / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_a_step_that_fails_is_named_and_makes_the_story_fail(demo: Start, tmp_path: Path) -> None:
    awk = tmp_path / "awk"
    awk.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    awk.chmod(0o755)
    played = demo(
        "--chapters", "orders",
        PATH=f"{tmp_path}:{os.environ['PATH']}", ASTHA_POSTGRES_BIN="/nonexistent",
    )  # fmt: skip
    assert played.end() == 1, played.text
    assert "The registry is a SQLite file, because no PostgreSQL programs were found" in played.text
    assert "no space left" in played.text
    assert "✗ exit status 3, expected 0" in played.text
    assert "✗ A table, and three writers at once: for n in 1 2 3; do: exit status 3" in played.text


def test_sigterm_in_the_middle_leaves_nothing(demo: Start) -> None:
    played = demo("--chapters", "orders")
    played.shows("$ (for n in 1 2 3; do astha insert")  # and they run
    played.process.send_signal(signal.SIGTERM)
    assert played.end() == 128 + signal.SIGTERM, played.text


def test_on_a_terminal_a_story_that_succeeds_stays_until_ctrl_c(demo: Start) -> None:
    played = demo("--chapters", "orders", terminal=True)
    played.shows("Ctrl-C stops everything and removes it.")
    for shown in (
        "The registry is an embedded PostgreSQL server",
        "astha tables list",
        "✓ The registry counts 3,000 rows.",
        "/dashboard/#token=",
    ):
        assert shown in played.text
    played.process.send_signal(signal.SIGINT)
    assert played.end() == 0, played.text


@pytest.mark.long
def test_the_whole_story_succeeds(demo: Start) -> None:
    played = demo()
    status = played.end(WHOLE_STORY_S)
    assert status == 0, played.text
    assert "left out" not in played.text
    for sentence in (
        "✓ Fewer files: 300 before, 3 now", "✓ The same rows", "✓ A faster query", "✓ The circuit has closed by itself",
        "equal: 4 tables",
    ):  # fmt: skip
        assert sentence in played.text
