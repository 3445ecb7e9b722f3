"""Every command's help has an example that the real parser accepts, and no group cuts the lines of its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from astha.cli import main
from tests.unit.astha.cli.command_tree import all_commands, parse

COMMANDS = all_commands()
_EXAMPLES = re.compile(r"\x08\n *Examples?:\n((?: +\S.*\n?)+)")
_OTHER_PROGRAM = re.compile(r"[|<>&;]")


def examples(command: click.Command) -> list[str]:
    block = _EXAMPLES.search(f"{command.help}\n".replace("\\b", "\x08"))
    return [] if block is None else [line.strip() for line in block[1].splitlines() if line.strip()]


def of_astha(line: str) -> list[list[str]]:
    """Returns the arguments of each `astha` in a line of shell."""
    parts = [shlex.split(part) for part in _split(line)]
    return [part[1:] for part in parts if part and part[0] == "astha"]


def _split(line: str) -> list[str]:
    """Splits at pipes, redirections and the ends of commands outside of quotes."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars="|<>&;")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for token in lexer:
        if _OTHER_PROGRAM.match(token):
            parts.append([])
        else:
            parts[-1].append(token)
    return [" ".join(part) for part in parts]


@pytest.mark.parametrize("name", COMMANDS)
def test_has_an_example_of_itself(name: str) -> None:
    lines = [shlex.join(["astha", *arguments]) for line in examples(COMMANDS[name]) for arguments in of_astha(line)]
    assert any(f"{line} ".startswith(f"{name} ") for line in lines), f"add an example to the help of `{name}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_are_accepted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("ASTHA_CONFIG", "ASTHA_REGISTRY"):
        monkeypatch.delenv(variable, raising=False)
    for line in examples(COMMANDS[name]):
        for arguments in of_astha(line):
            for file in (one for one in arguments if re.fullmatch(r"[\w-]+\.(csv|parquet|jsonl|txt|yaml)", one)):
                (tmp_path / file).touch()
            parse(arguments)


@pytest.mark.parametrize(
    ("arguments", "close"), [(["statu"], "'status'"), (["tables", "creat"], "'create'"), (["xyzzy"], None)]
)
def test_a_command_that_is_misspelt_is_suggested(arguments: list[str], close: str | None) -> None:
    said = CliRunner().invoke(main, arguments).stderr
    assert "No such command" in said
    assert (f"Did you mean {close}" in said) if close else ("Did you mean" not in said)


def test_a_wrong_example_is_refused() -> None:
    assert of_astha("echo 'a | b' | astha produce orders --key-separator : > log") == [
        ["produce", "orders", "--key-separator", ":"]
    ]
    for wrong in (["tables", "creat"], ["status", "--wacth"], ["groups", "reset", "billing"]):
        with pytest.raises(click.UsageError):
            parse(wrong)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if isinstance(command, click.Group)])
def test_a_group_shows_whole_lines(name: str) -> None:
    shown = CliRunner().invoke(main, [*name.split()[1:], "--help"], terminal_width=80, env={"COLUMNS": "80"}).output
    text = " ".join(shown.split())
    group = COMMANDS[name]
    assert isinstance(group, click.Group)
    for each in group.list_commands(click.Context(group)):
        assert COMMANDS[f"{name} {each}"].get_short_help_str(1_000) in text


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_a_terminal(name: str) -> None:
    context = click.Context(COMMANDS[name], info_name=name, terminal_width=80)
    assert [line for line in COMMANDS[name].get_help(context).splitlines() if len(line) > 80] == []
