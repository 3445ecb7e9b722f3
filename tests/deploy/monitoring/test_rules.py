from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from astha.cli.root import main
from tests.deploy.monitoring.rules_files import ROOT, RULE_TESTS, RULES, alerts, promtool, recorded

RUNBOOK = "docs/operations/runbook.md"
SECTION_PARTS = ("**Meaning.**", "**Look.**", "**Do.**", "**Clears.**")


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *RULES)


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    promtool("test", "rules", path)


def test_each_alert_fires_in_one_test_and_not_in_another() -> None:
    fires: Counter[str] = Counter()
    quiet: Counter[str] = Counter()
    for path in RULE_TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", ()):
                (fires if case["exp_alerts"] else quiet)[case["alertname"]] += 1
    names = {rule["alert"] for rule in alerts()}
    assert names == set(fires) == set(quiet)


def test_each_recording_rule_has_a_test() -> None:
    text = (Path(__file__).parent / "rules/recording.yaml").read_text()
    assert {name for name in recorded() if name not in text} == set()


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(rule["alert"] for rule in alerts()).items() if count > 1] == []


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """Severity, summary, a description with the labels that tell the places apart, and a section of the runbook."""
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert rule["alert"] == "AsthaAbsent" or "$labels." in annotations["description"]
    path, _, anchor = annotations["runbook_url"].partition("#")
    assert path == RUNBOOK
    assert anchor in sections()
    assert [part for part in SECTION_PARTS if part not in sections()[anchor]] == []


def test_the_runbook_has_no_section_of_an_alert_that_does_not_exist() -> None:
    assert sections().keys() == {rule["alert"].lower() for rule in alerts()}


def sections() -> dict[str, str]:
    """The runbook's sections of alerts, by anchor."""
    parts = re.split(r"^### (\w+)$", (ROOT / RUNBOOK).read_text(), flags=re.MULTILINE)
    return {name.lower(): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_commands_of_the_runbook_exist() -> None:
    lines = re.findall(r"^    astha (.*?)(?: *#.*)?$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    inline = re.findall(r"`astha (.*?)`", (ROOT / RUNBOOK).read_text())
    assert {line for line in {*lines, *inline} if not _is_command(line.split())} == set()


def _is_command(words: list[str]) -> bool:
    """The words are commands, then arguments in capitals and options that the command has."""
    command: click.Command | None = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words:
        command, words = command.get_command(context, words[0]), words[1:]
    if command is None:
        return False
    options = {name for parameter in command.params for name in parameter.opts}
    return all(word in options if word.startswith("-") else word.isupper() or word.isdigit() for word in words)
