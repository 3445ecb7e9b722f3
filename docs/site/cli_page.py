"""The reference of all commands, from their parser."""

from __future__ import annotations

from collections.abc import Iterator

import click

from astha.cli import main

_WIDTH = 100


def markdown() -> str:
    """Returns the page: each command as its `--help` shows it, with the options that it does not share with others."""
    parts = ["# Commands", "`astha COMMAND --help` prints these texts. Exit codes are below `astha`."]
    for name, text in _helps(main, click.Context(main, info_name="astha", max_content_width=_WIDTH), "astha"):
        parts.append(f"## `{name}`\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _helps(command: click.Command, context: click.Context, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and not found.hidden:
                below = click.Context(found, parent=context, info_name=each, max_content_width=_WIDTH)
                yield from _helps(found, below, f"{name} {each}")
