"""All commands of `astha`, as users reach them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from astha.cli import main


def all_commands() -> dict[str, click.Command]:
    """Returns all commands and groups by their whole names, such as ``astha tables create``."""
    return dict(_below(main, click.Context(main, info_name="astha"), "astha"))


def _below(command: click.Command, context: click.Context, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _below(found, click.Context(found, parent=context, info_name=each), f"{name} {each}")


def parse(arguments: list[str]) -> click.Context:
    """Parses a command line as `astha` does, without running the command. Raises `click.UsageError`."""
    context = main.make_context("astha", list(arguments))
    command: click.Command = main
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return context
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)
    return context
