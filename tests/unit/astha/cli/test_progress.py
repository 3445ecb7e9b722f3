from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from astha.cli import progress as module
from astha.cli.progress import Progress, progress
from tests.unit.astha.cli.terminal import run_on_terminal


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LINE_EVERY_S", "_SILENT_S", "_REDRAW_S"):
        monkeypatch.setattr(module, name, 0.01)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within a minute")


def test_a_line_names_what_is_done() -> None:
    shown = Progress("copying", "rows")
    assert shown.line() == "copying, 0 s"
    shown("topics", 1_500, 20_000)
    assert shown.line() == "copying: topics: 1,500 of 20,000 rows, 0 s"
    shown.note("comparing")
    assert shown.line() == "copying: comparing, 0 s"


def test_bytes_have_units() -> None:
    shown = Progress("inserting", "bytes")
    shown("a.csv", 1024, 5 << 20)
    assert shown.line() == "inserting: a.csv: 1.0 KiB of 5.0 MiB, 0 s"
    shown("-", 1024, None)
    assert shown.line() == "inserting: -: 1.0 KiB, 0 s"


def test_a_quick_command_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("copying") as report:
        report("topics", 1, 1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quick")
def test_without_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    printed = ["", ""]

    def has_line() -> bool:
        captured = capsys.readouterr()
        printed[0] += captured.out
        printed[1] += captured.err
        return "copying: topics: 1 of 2 rows" in printed[1]

    with progress("copying", unit="rows") as report:
        report("topics", 1, 2)
        wait_until(has_line)
    assert printed[0] == ""
    assert "\x1b" not in printed[1]


@pytest.mark.usefixtures("quick")
def test_quiet_without_a_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with progress("copying", quiet=True):
        assert threading.active_count() == before  # no thread that could print
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quick")
def test_of_two_the_inner_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> set[str]:
        return {line.partition(",")[0] for line in capsys.readouterr().err.splitlines()}

    with progress("waiting"):
        wait_until(lambda: printed() == {"waiting"})
        with progress("requested"):
            wait_until(lambda: printed() == {"requested"})
        wait_until(lambda: printed() == {"waiting"})


_PROGRAM = """
import sys, time
from astha.cli.progress import progress
with progress("copying", quiet=True, unit="rows") as report:
    report("topics", 1, 2)
    time.sleep(2)
print("the result")
"""


def test_on_a_terminal_one_line_is_updated_and_removed(tmp_path: Path) -> None:
    """`quiet` is of no effect: the line is on stderr, and the result of --json alone on stdout."""
    result = run_on_terminal(_PROGRAM, tmp_path)
    assert result.stdout == "the result\n"
    assert "copying: topics: 1 of 2 rows" in result.terminal
    assert "\n" not in result.terminal
    assert result.terminal.endswith("\r\x1b[K")
