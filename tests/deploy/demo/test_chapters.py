"""The demo's commands are accepted by the program, and those of the tutorial are the same."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from deploy.demo.chapters import all_chapters
from deploy.demo.story import Addresses, Chapter, Service, Step
from tests.code_blocks import code_blocks
from tests.unit.astha.cli.command_tree import parse
from tests.unit.docs.test_code_blocks import command_lines
from tests.unit.test_docs import ROOT

CHAPTERS = all_chapters(Addresses())
IN_THE_TUTORIAL = ("start", "orders", "iceberg", "outage", "topic")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_commands_are_accepted(chapter: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ASTHA_CONFIG", "ASTHA_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    lines = [line for step in chapter.steps for line in command_lines(step.command)]
    for line in lines:
        arguments = shlex.split(line.replace("$n", "1").replace("*", "1"))[1:]
        for file in (one for one in arguments if Path(one).suffix in (".csv", ".jsonl", ".yaml")):
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
        parse(arguments)


def test_commands_are_found() -> None:
    found = [line for chapter in CHAPTERS for step in chapter.steps for line in command_lines(step.command)]
    assert {"astha up", "astha insert shop.visits visits/*.csv", "astha verify --files --checksums"} <= set(found)


def test_the_tutorial_has_the_same_commands() -> None:
    tutorial = "\n".join(block.text for block in code_blocks(ROOT / "docs" / "tutorial.md"))
    steps = [step for chapter in CHAPTERS if chapter.name in IN_THE_TUTORIAL for step in chapter.steps]
    assert len(steps) > 20
    assert [step.command for step in steps if f"{step.command}\n" not in tutorial] == []


def test_every_chapter_checks_something() -> None:
    for chapter in CHAPTERS:
        steps = [step for step in chapter.steps if isinstance(step, Step)]
        assert any(step.claims for step in steps), chapter.name


def test_a_service_is_shown_as_a_command_of_the_shell() -> None:
    service = Service("python - <<'END'\nprint(1)\nEND", "out.log", bool)
    assert service.command == "python - <<'END' > out.log 2>&1 &\nprint(1)\nEND"
