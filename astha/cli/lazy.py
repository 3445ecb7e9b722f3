"""Groups whose commands are imported when they run. Their help lists known commands without importing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

_WHOLE = 1_000


class LazyGroup(click.Group):
    """``places`` maps a command's name to its ``module:attribute``, ``short_helps`` to its line in the group's help.

    A command without a short help is imported to list it.
    """

    def __init__(
        self,
        *arguments: Any,
        places: Mapping[str, str] | None = None,
        short_helps: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.places = places or {}
        self._short_helps = short_helps or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.places and cmd_name not in self.commands:
            module, _, attribute = self.places[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests commands for a name that is none, as click does for options."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := get_close_matches(args[0], self.list_commands(ctx)):
                error.message = f"{error.message} Did you mean {' or '.join(map(repr, close))}?"  # type: ignore[misc]
            raise

    def line_in_help(self, ctx: click.Context, name: str) -> str | None:
        """Returns the command's line in the help, or None if the command has to be imported for it."""
        return self._short_helps.get(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands as click does, but imports none whose short help is known, and wraps what click cuts."""
        listed = list(self._visible(ctx))
        if listed:
            with formatter.section("Commands"):
                formatter.write_dl(listed)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without importing them. `click.Command` completes the options."""
        names = [
            CompletionItem(name, help=text) for name, text in self._visible(ctx, incomplete) if name not in ctx.args
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def _visible(self, ctx: click.Context, start: str = "") -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            if not name.startswith(start):
                continue
            text = self.line_in_help(ctx, name)
            command = self.get_command(ctx, name) if text is None else click.Command(name, short_help=text)
            if command is not None and not command.hidden:
                yield name, command.get_short_help_str(_WHOLE)
