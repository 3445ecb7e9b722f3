from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import Figure, Report, run


def test_goals() -> None:
    assert Figure("fast", 3.0, "", at_least=3).reached
    assert not Figure("slow", 2.9, "", at_least=3).reached
    assert Figure("cheap", 0.1, "", at_most=1 / 6).goal == "<= 0.167"
    assert not Figure("dear", 0.2, "", at_most=1 / 6).reached
    assert Figure("told", 7.0, "").reached


@pytest.mark.parametrize("goal", [{"at_least": 3.0}, {"at_most": 3.0}])
def test_what_could_not_be_measured_reaches_no_goal(goal: dict[str, float]) -> None:
    figure = Figure("unknown", math.nan, "not measured: no Java", **goal)
    assert not figure.reached
    assert figure.as_json() is None


async def _measure(report: Report) -> None:
    report.add("reached", 4, "four over one", at_least=3)
    report.add("not_reached", 2, "two over one", at_least=3)
    report.add("not_measured", math.nan, "not measured: no Java", at_least=3)


def test_a_missed_goal_is_said_without_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "--check"])
    assert run("title", _measure) == 1
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert [line for line in lines if "missed" in line] == [line for line in lines if "not_" in line]
    assert "1 of 3 goals reached" in output


def test_json_has_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json"])
    assert run("title", _measure) == 0
    assert json.loads(capsys.readouterr().out) == {"reached": 4, "not_reached": 2, "not_measured": None}


NOISY = """
import subprocess, sys
import structlog
from benchmarks.report import run

early = structlog.get_logger("early").bind()

async def measure(report):
    print("printed")
    early.warning("logged by who was there before")
    structlog.get_logger().warning("logged")
    sys.__stdout__.write("written past everything\\n")
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    report.add("figure", 4, "")

sys.exit(run("title", measure))
"""


def test_stdout_holds_one_json_object_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "noisy.py"
    program.write_text(NOISY)
    command = [sys.executable, str(program), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == {"figure": 4}
    assert done.stdout.count("\n") == 1
    for words in ("printed", "logged by who", "written past everything", "of a child"):
        assert words in done.stderr
